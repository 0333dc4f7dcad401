"""The handler of the drills as a worker process loads it: what a rescued job does."""

from __future__ import annotations

from jobmaster.handlers import Handlers, JobContext

NAME = "drill.work"
RESCUED = "by its rescuer"
"""Result of whoever runs the job after it was rescued."""
LATE = "by its first owner"
"""Result of who ran it first, which must never be recorded."""

handlers = Handlers()


@handlers.job(name=NAME)
async def work(ctx: JobContext) -> str:
    """Ends at once."""
    return RESCUED
