"""The leader's retention of jobs on real servers."""

from __future__ import annotations

from uuid import UUID

import asyncpg
import pytest
from msgspec.structs import replace

from benchmarks.support.synthetic_history import lower_floor
from jobmaster.clock import new_id
from jobmaster.doctor.findings import CheckStatus
from jobmaster.doctor.life import retention_finding
from jobmaster.model.job import NewJob
from jobmaster.settings.model import (
    ClusterSettings,
    JobRetention,
    MasterSettings,
    Retention,
    RetiredJobs,
    StoreSettings,
)
from jobmaster.wiring import open_reader
from jobmaster_agents.event_log import EventLog
from jobmaster_agents.leader import job_retention
from jobmaster_agents.leader.maintenance_runner import IDLE_SECONDS
from tests.integration.agents.fixture import DrivenCluster, Owner

DAY_MS = 86_400_000


class _Leader:
    """Answers whether the agent leads; the lead ends after some answers."""

    def __init__(self, answers: int) -> None:
        self.answers = answers

    def __call__(self) -> bool:
        self.answers -= 1
        return self.answers >= 0


def _settings(driven: DrivenCluster, then: RetiredJobs) -> ClusterSettings:
    rule = JobRetention(after_seconds=1.5 * 86_400, then=then)
    return ClusterSettings(
        cluster=driven.cluster,
        master=MasterSettings(dsn=driven.dsn, schema=driven.schema, pool_size=1),
        stores={"default": StoreSettings(url=driven.store_url)},
        retention=Retention(jobs=rule),
    )


async def _tick(settings: ClusterSettings, answers: int = 100) -> float:
    duty = job_retention.JobRetention(new_id(), settings, _Leader(answers), EventLog())
    return await duty.tick()


async def _finding(settings: ClusterSettings) -> tuple[CheckStatus, str]:
    reader = await open_reader(settings)
    try:
        found = await retention_finding(settings, reader)
    finally:
        await reader.close()
    return found.status, found.detail


@pytest.fixture
async def aged(driven: DrivenCluster) -> tuple[Owner, bytes, bytes]:
    """A cluster that is four days old: its owner, a finished and an unfinished job of its first day."""
    connection = await asyncpg.connect(driven.dsn, server_settings={"search_path": driven.schema})
    await lower_floor(connection, 4)
    now_ms = int(await connection.fetchval("SELECT to_us(clock_timestamp()) / 1000"))
    owner = await driven.owner()
    ended, held = ((now_ms - 3 * DAY_MS).to_bytes(6, "big") + new_id()[6:] for _ in range(2))
    jobs = [NewJob(id_, 3, owner.lane, "work", b"{}", b"", 0) for id_ in (ended, held)]
    await owner.master.intake.insert_held(jobs)
    await connection.execute(
        "UPDATE job SET state = 'SUCCEEDED', bucket_id = gen_random_uuid(), bucket_epoch = 1 WHERE id = $1",
        UUID(bytes=ended),
    )
    await connection.close()
    return owner, ended, held


async def _ranges(driven: DrivenCluster) -> list[str]:
    return [row["state"] for row in await driven.rows("SELECT state::text FROM archive_manifest ORDER BY lo")]


async def test_the_leader_retires_what_is_older_than_the_lifetime_and_drops_it_on_demand(
    driven: DrivenCluster, aged: tuple[Owner, bytes, bytes]
) -> None:
    _, ended, held = aged
    keep, discard = _settings(driven, RetiredJobs.KEEP), _settings(driven, RetiredJobs.DISCARD)
    assert await _finding(keep) == (
        CheckStatus.WARN,
        "jobs leave after 1d12h and are kept for the archive; no leader has looked yet",
    )
    off = replace(keep, retention=Retention())
    assert await _tick(off) == await _tick(keep, answers=0) == IDLE_SECONDS
    assert await _ranges(driven) == [], "off by default, and an agent that does not lead does nothing"

    await _tick(keep, answers=1)
    assert await _ranges(driven) == ["DETACHED"], "one that leads no more begins no further range"
    assert await _tick(keep) == job_retention.LOOK_SECONDS
    retired = await _ranges(driven)
    assert len(retired) in (2, 3)
    assert set(retired) == {"DETACHED"}
    assert held in await driven.jobs(), "an unfinished job stays in the master"
    assert ended not in await driven.jobs()
    assert [row["id"].bytes for row in await driven.rows("SELECT id FROM jobs WHERE state = 'SUCCEEDED'")] == [ended]
    status, detail = await _finding(keep)
    assert status is CheckStatus.OK
    assert detail.endswith("nothing older is left")
    assert (await _finding(discard))[0] is CheckStatus.WARN, "the leader has other settings"

    await _tick(discard)
    assert set(await _ranges(driven)) == {"DROPPED"}
    assert not await driven.rows("SELECT id FROM jobs WHERE state = 'SUCCEEDED'")
    assert held in await driven.jobs()


async def test_a_range_that_a_store_may_hold_jobs_of_stays_and_the_reason_is_shown(
    driven: DrivenCluster, aged: tuple[Owner, bytes, bytes]
) -> None:
    owner, ended, _ = aged
    await owner.master.stores.store_generation("elsewhere", new_id())
    settings = _settings(driven, RetiredJobs.DISCARD)
    await _tick(settings)
    assert ended in await driven.jobs()
    status, detail = await _finding(settings)
    assert status is CheckStatus.WARN
    assert "a range cannot leave: store 'elsewhere' may hold jobs that the master does not have" in detail
