"""The agent store: Redis or Valkey behind the ports, driven by one library of server functions.

The data in a store (see ``keys``) change only inside those functions, each of them atomic and fenced. This package decides
nothing about jobs or buckets; it moves bytes and returns the status that the server answered. No other package sends
commands to Redis.
"""
