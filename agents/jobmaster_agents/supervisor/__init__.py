"""The parent of agent processes: starts, watches, kills and replaces them."""
