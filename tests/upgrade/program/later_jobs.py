"""A handler that only the newer version of the fleet has."""

from __future__ import annotations

from fleet_jobs import handlers, note  # type: ignore[import-not-found]

from jobmaster import JobContext


@handlers.job(name="fleet.later")  # type: ignore[untyped-decorator]
async def later(ctx: JobContext, number: int) -> int:
    note(ctx, "later")
    return number
