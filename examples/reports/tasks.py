"""Two schedules: what is free on the disk each few seconds, and a report each night."""

import shutil

from jobmaster import Handlers, JobContext

handlers = Handlers()


# A sample that was missed is worth nothing an hour later; and while one is taken, no other begins.
@handlers.every("2s", misfire="skip", overlap="skip", tags=["disk"])
@handlers.job(name="disk.sample", timeout=10)
def sample(path: str = "/") -> float:
    usage = shutil.disk_usage(path)
    return round(100 * usage.free / usage.total, 1)


# After an outage one report is made up for, not one for each night. A report that still runs is not disturbed: the next one
# waits for its end. One that could not start within six hours is of no use any more.
@handlers.every(
    "0 3 * * *", zone="Europe/Berlin", misfire="last", overlap="queue", jitter="5m", expires="6h", tags=["reports"]
)
@handlers.job(name="reports.nightly", timeout=600, max_attempts=3)
def nightly(ctx: JobContext, path: str = "/") -> str:
    free = shutil.disk_usage(path).free / 1e9
    return f"{ctx.nominal_at:%Y-%m-%d}: {free:.1f} GB are free on {path}"
