"""The handler of the drills for worker processes, where a rescued job runs."""

from __future__ import annotations

from jobmaster.handlers import Handlers, JobContext

NAME = "drill.work"
RESCUED = "by its rescuer"
"""Result of the run after the rescue."""
LATE = "by its first owner"
"""Result of the first run, which must never be recorded."""

handlers = Handlers()


@handlers.job(name=NAME)
async def work(ctx: JobContext) -> str:
    """Ends at once."""
    return RESCUED
