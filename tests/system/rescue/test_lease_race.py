"""The lease race on real servers: always the same events, always one outcome; and it fails when a guard is taken away."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

import asyncpg
import pytest
import redis.asyncio

from jobmaster.demo.lease_race.drill_cluster import temporary_cluster
from jobmaster.demo.lease_race.event_trace import EventTrace
from jobmaster.demo.lease_race.lease_race import LeaseRace, RaceOptions, RaceResult
from jobmaster.master.driver.statements import sql
from jobmaster.settings.model import ClusterSettings, MasterSettings, StoreSettings
from tests.support.deployment import ENVIRONMENT, REPOSITORY
from tests.support.patience import PATIENCE_SECONDS

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

RUNS = [
    pytest.param(0, 4, id="four times"),
    *(pytest.param(part, 25, id=f"{part + 1} of 20 x 25 times", marks=pytest.mark.long) for part in range(20)),
]
"""Number of the test, and how often it plays the race."""
HOUR = 3600.0
STORY = [
    "A buckets_opened", "producer drill_submitted", "A drill_running", "A drill_row_written", "A drill_asleep",
    "B buckets_opened", "B agent_certified_dead", "B bucket_taken", "B bucket_drained", "B drill_rescued_and_finished",
    "A drill_awake", "A drill_record_refused", "A bucket_forgotten", "A agent_fenced", "A drill_left", "B bucket_closed",
]  # fmt: skip
UNKNOWN_STORY = [line for line in STORY if line not in ("A drill_row_written", "A bucket_forgotten")]
UNKNOWN_STORY.insert(UNKNOWN_STORY.index("A drill_record_refused"), "A bucket_forgotten")
TOO_SLOW = "A was fenced because the lease could not be renewed in time"
TRIES = 5
"""Runs of a course on a machine that is so slow that A, with a lease of 0.2 s, is fenced before it falls asleep."""
SLOW_MACHINE = {"lease_renewal_failed", "lease_trusted_again", "clock_skewed"}
"""A renewal of this drill has 60 ms. A slow machine lets B live until its next renewal, which compares its shifted clock."""


@pytest.fixture
def servers(master_dsn: str, store_url: str) -> ClusterSettings:
    return ClusterSettings(master=MasterSettings(dsn=master_dsn), stores={"default": StoreSettings(url=store_url)})


async def play(servers: ClusterSettings, courses: Sequence[RaceOptions]) -> list[tuple[RaceResult, list[str]]]:
    """Result and events of each."""
    played = []
    async with temporary_cluster(servers) as drill:
        for course in courses:
            for _ in range(TRIES):
                with EventTrace(lambda _: None, as_json=True) as story:
                    result = await LeaseRace(drill, course, story).run()
                if TOO_SLOW not in result.off:
                    break
            played.append((result, [f"{who} {what}" for who, what in story.events if what not in SLOW_MACHINE]))
    return played


@pytest.mark.parametrize(("part", "runs"), RUNS)
@pytest.mark.parametrize(
    "shift",
    [
        pytest.param(0.0, id="true clocks"),
        pytest.param(HOUR, id="an hour ahead"),
        pytest.param(-HOUR, id="an hour behind", marks=pytest.mark.long),
    ],
)
async def test_the_race_ends_the_same_way_every_time(
    servers: ClusterSettings, shift: float, part: int, runs: int
) -> None:
    courses = [RaceOptions(shift, known=number % 2 == part % 2) for number in range(runs)]
    for course, (result, story) in zip(courses, await play(servers, courses), strict=True):
        assert result.off == []
        assert result.ok
        assert (result.concluding_lines, result.token, result.stale_refused) == (1, 3, 1)
        assert set(result.invariants.values()) == {0}
        assert story == (STORY if course.known else UNKNOWN_STORY)


async def test_nothing_of_it_stays_on_the_servers(servers: ClusterSettings, master_dsn: str, store_url: str) -> None:
    await play(servers, [RaceOptions()])
    connection = await asyncpg.connect(master_dsn)
    schemas = await connection.fetch("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'jobmaster%'")
    await connection.close()
    assert schemas == []
    assert store_url.startswith("unix://"), urlsplit(store_url)
    async with redis.asyncio.Redis(unix_socket_path=urlsplit(store_url).path) as store:
        assert [key async for key in store.scan_iter(match="jm:{drill-*", count=1000)] == []


# ---------------------------------------------------------------- without a guard

IDENTITY = """WHERE j.token = EXCLUDED.token
      AND j.bucket_id = EXCLUDED.bucket_id
      AND j.bucket_epoch = EXCLUDED.bucket_epoch
      AND j.state IN ('ASSIGNED', 'PROCESSING')"""
CERTIFICATE = "WHERE id = $1::uuid AND state IN ('ACTIVE', 'STOPPING')"


def without(statement: str, guard: str, instead: str) -> Callable[[str], str]:
    """The texts of all statements, one of them without its guard."""
    assert guard in sql(statement)
    return lambda name: sql(name).replace(guard, instead) if name == statement else sql(name)


async def test_without_the_identity_on_the_row_the_drill_fails(
    servers: ClusterSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobmaster.master.driver.batches.sql", without("outcomes/record_final", IDENTITY, "WHERE true"))
    ((result, _),) = await play(servers, [RaceOptions()])
    assert not result.ok
    assert result.stale_refused == 0
    assert "the recorded result is 'by its first owner'" in result.off


async def test_a_dead_agent_whose_renewal_is_accepted_is_noticed(
    servers: ClusterSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "jobmaster.master.driver.connection.sql", without("members/renew", CERTIFICATE, "WHERE id = $1::uuid")
    )
    ((result, _),) = await play(servers, [RaceOptions()])
    assert "the master still takes A for alive" in result.off


# ---------------------------------------------------------------- the command


def test_the_command_prints_the_events_and_a_result() -> None:
    for _ in range(TRIES):
        answer = subprocess.run(
            [sys.executable, "-m", "jobmaster.cli.main", "drill", "lease-race", "--runs", "2", "--json"],
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            cwd=REPOSITORY,
            env=ENVIRONMENT,
            check=False,
        )
        if TOO_SLOW not in answer.stdout:
            break
    assert answer.returncode == 0, answer.stdout + answer.stderr
    *story, last = [json.loads(line) for line in answer.stdout.splitlines()]
    told = [f"{line['name']} {line['event']}" for line in story if line["event"] not in SLOW_MACHINE]
    assert told == STORY * 2
    assert (last["concluding_lines"], last["token"], last["stale_refused"]) == (1, 3, 1)
    assert (last["ok"], last["runs"], last["runs_off"]) == (True, 2, 0)
    assert last["events"] >= len(STORY)
