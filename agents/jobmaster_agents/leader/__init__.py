"""The work of the leader: the one agent that finds due jobs and runs maintenance tasks for the whole cluster."""
