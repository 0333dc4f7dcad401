"""The agent store: Redis or Valkey behind the ports, driven by one library of server functions.

What lies in a store (see ``keys``) changes only inside those functions, each one atomic and fenced. This room never
decides what a job or bucket may become; it moves bytes and repeats the words the server answered. Redis is spoken to
nowhere else.
"""
