"""A handler to begin with; this folder is the working directory of the agents. Put yours in its place."""

from jobmaster import Handlers

handlers = Handlers()


@handlers.job(name="greet")
async def greet(name: str) -> str:
    return f"Hello, {name}"
