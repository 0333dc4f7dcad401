"""Handlers of two versions of a program, which declare one schedule with other times and limits."""

from __future__ import annotations

from jobmaster.handlers import Handlers
from jobmaster_agents import schedule_publisher

schedule_publisher.CHECK_SECONDS = (
    1.0  # agents look as often at what they declare, so that the test does not wait a minute
)

older = Handlers()
newer = Handlers()


@older.every("1h", name="deploy-report", timeout=60)
@older.job(name="deploy.report", timeout=600)
@newer.every("2h", name="deploy-report", timeout=90)
@newer.job(name="deploy.report", timeout=900)
async def report() -> None:
    return None
