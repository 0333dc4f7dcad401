"""What the leader shows of waiting jobs, and what an autoscaler is told: rates, bounds, silent stores, stale looks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from urllib.parse import parse_qsl, urlsplit

import pytest
import yaml

from jobmaster.clock import new_id
from jobmaster.model.bucket import BucketBacklog
from jobmaster.model.errors import Unavailable
from jobmaster.model.job import Priority
from jobmaster.ports import FilledBucket, HeldJobs, MasterBacklog
from jobmaster.telemetry import GROUPS_MAX, Telemetry
from jobmaster_agents.event_log import EventLog
from jobmaster_agents.leader.backlog import (
    EVERY_SECONDS,
    IDLE_SECONDS,
    JOBS_MAX,
    RATE_SECONDS,
    BacklogMonitor,
    backlog_seconds,
)
from jobmaster_agents.state.store_reachability import StoreReachability
from tests.repository.made_texts import ROOT
from tests.support.hand_clock import HandClock

HIGH, MEDIUM = int(Priority.HIGH), int(Priority.MEDIUM)


class Servers:
    """A master and two stores."""

    def __init__(self, clock: HandClock) -> None:
        self.clock = clock
        self.answer = MasterBacklog([], [], {})
        self.waiting: dict[bytes, BucketBacklog] = {}
        self.looks = 0
        self.look_seconds = 0.0
        self.silent = False
        self.gate: asyncio.Event | None = None

    async def backlog(self, jobs_max: int) -> MasterBacklog:
        assert jobs_max == JOBS_MAX
        self.looks += 1
        self.clock.now += self.look_seconds
        if self.gate is not None:
            await self.gate.wait()
        return self.answer

    async def backlogs(self, bucket_ids: Sequence[bytes]) -> list[BucketBacklog | None]:
        if self.silent:
            raise Unavailable("no answer")
        return [self.waiting.get(bucket_id) for bucket_id in bucket_ids]

    async def ping(self) -> None:
        raise Unavailable("no answer")


class Case:
    def __init__(self) -> None:
        self.clock, self.telemetry, self.leads = HandClock(), Telemetry(), True
        self.servers = Servers(self.clock)
        stores = {"a": self.servers, "b": self.servers}
        reachability = StoreReachability(list(stores), stores, self.clock, lambda store: None, Telemetry(), EventLog())
        self.monitor = BacklogMonitor(
            self.servers, stores, reachability, lambda: self.leads, self.clock, self.telemetry
        )

    def bucket(self, lane: str = "default", priority: int = MEDIUM, store: str = "a", owner: bytes = b"o") -> bytes:
        made = FilledBucket(new_id(), store, lane, priority, owner, True)
        self.servers.answer.buckets.append(made)
        return made.id

    def shown(self, key: str) -> object:
        return self.telemetry.value(key)


@pytest.fixture
def case() -> Case:
    return Case()


async def test_the_leader_shows_what_waits_in_the_master_and_in_stores(case: Case) -> None:
    case.servers.answer.held.append(HeldJobs("default", MEDIUM, 7, 20, 12.5))
    first, second = case.bucket(), case.bucket(store="b")
    case.bucket("reports", HIGH)
    case.servers.waiting = {first: BucketBacklog(3, 1, 40.0, 0), second: BucketBacklog(2, 0, 1.0, 0)}
    assert await case.monitor.tick() == EVERY_SECONDS
    assert case.shown("backlog_jobs") == {
        ("default", "medium", "pending"): 5.0, ("default", "medium", "assigned"): 1.0,
        ("default", "medium", "held_due"): 7.0, ("reports", "high", "pending"): 0.0,
        ("reports", "high", "assigned"): 0.0, ("reports", "high", "held_due"): 0.0,
    }  # fmt: skip
    assert case.shown("oldest_due_seconds") == {("default", "medium"): 40.0, ("reports", "high"): 0.0}
    assert case.shown("held_jobs") == {("default", "medium"): 27.0, ("reports", "high"): 0.0}


async def test_only_the_leader_shows_it_and_only_while_it_is_fresh(case: Case) -> None:
    case.bucket()
    case.leads = False
    assert await case.monitor.tick() == IDLE_SECONDS
    assert case.servers.looks == 0, "an agent that does not lead asks nothing"
    await case.monitor.scale(None, None)
    assert case.shown("backlog_jobs") == {}
    case.leads = True
    assert case.shown("held_jobs") == {("default", "medium"): 0.0}
    case.clock.now += 3 * EVERY_SECONDS + 1
    assert case.shown("held_jobs") == {}


async def test_a_look_that_takes_long_is_made_less_often(case: Case) -> None:
    case.servers.look_seconds = 1.0
    assert await case.monitor.tick() == 50.0
    case.clock.now += 49.0
    assert 0.9 < await case.monitor.tick() <= 1.0
    assert case.servers.looks == 1


async def test_lanes_beyond_the_bound_are_shown_together(case: Case) -> None:
    for number in range(GROUPS_MAX + 20):
        case.servers.answer.held.append(HeldJobs(f"lane{number:03}", MEDIUM, 1, 0, float(number)))
    await case.monitor.tick()
    held = case.shown("held_jobs")
    assert isinstance(held, dict)
    assert len(held) == GROUPS_MAX + 1
    assert held["other", "other"] == 20.0
    oldest = case.shown("oldest_due_seconds")
    assert isinstance(oldest, dict)
    assert oldest["other", "other"] == GROUPS_MAX + 19.0


async def test_an_autoscaler_gets_the_figures_of_a_lane_and_the_rate_of_the_whole_cluster(case: Case) -> None:
    medium, high = case.bucket(owner=b"1"), case.bucket(priority=HIGH, owner=b"2")
    case.bucket("reports", owner=b"2")
    case.servers.answer.slots.update({b"1": 10, b"2": 30, b"3": 50})
    case.servers.answer.held.append(HeldJobs("default", MEDIUM, 100, JOBS_MAX, 9.0))
    case.servers.waiting = {medium: BucketBacklog(50, 0, 2.0, 1000), high: BucketBacklog(30, 0, 3.0, 500)}
    before = await case.monitor.scale(None, None)
    assert (before["rate_known"], before["jobs_per_second"]) == (False, 0.0)
    assert before["backlog_seconds"] == 9.0, "180 jobs in 40 slots, and the oldest has waited for 9 seconds"
    case.clock.now += 10.0
    case.servers.waiting = {medium: BucketBacklog(50, 0, 2.0, 1300), high: BucketBacklog(30, 0, 3.0, 600)}
    whole = await case.monitor.scale(None, None)
    assert whole == {
        "backlog_jobs": 180, "pending": 80, "assigned": 0, "held_due": 100, "held_jobs": 100 + JOBS_MAX, "capped": True,
        "oldest_due_seconds": 9.0, "jobs_per_second": 40.0, "rate_known": True, "backlog_seconds": 4.5, "slots": 40,
        "agents": 2, "buckets_unread": 0, "age_seconds": 0.0,
    }  # fmt: skip
    some = await case.monitor.scale("default", Priority.HIGH)
    assert (some["backlog_jobs"], some["jobs_per_second"], some["backlog_seconds"]) == (30, 10.0, 3.0)
    assert (some["slots"], some["agents"], some["capped"]) == (30, 1, False)
    assert (await case.monitor.scale("reports", None))["backlog_seconds"] == 0.0
    assert (await case.monitor.scale("elsewhere", None))["agents"] == 0


async def test_keda_asks_an_agent_for_a_figure_that_it_gives(case: Case) -> None:
    """The ScaledObject of ``config/deploy`` names the Service, its port, the lane and the field by hand."""
    kubernetes = ROOT / "config" / "deploy" / "kubernetes"
    spec = yaml.safe_load((kubernetes / "keda" / "scaledobject.yaml").read_text())["spec"]
    base = {
        (each["kind"], each["metadata"]["name"]): each["spec"]
        for each in yaml.safe_load_all((kubernetes / "base" / "agents.yaml").read_text())
    }
    assert ("Deployment", spec["scaleTargetRef"]["name"]) in base
    (trigger,) = spec["triggers"]
    assert (trigger["type"], trigger["metricType"]) == ("metrics-api", "Value")
    metadata = trigger["metadata"]
    asked = urlsplit(metadata["url"])
    assert asked.path == "/scale"
    assert asked.port in {port["port"] for port in base["Service", asked.hostname]["ports"]}
    ((name, lane),) = parse_qsl(asked.query)
    assert name == "lane"
    assert metadata["valueLocation"] in await case.monitor.scale(lane, None)
    assert float(metadata["targetValue"]) > 0


async def test_the_rate_is_that_of_the_last_minute_or_of_two_looks_further_apart(case: Case) -> None:
    bucket = case.bucket()
    for taken in (0, 600, 600, 600):
        case.servers.waiting = {bucket: BucketBacklog(10, 0, 0.0, taken)}
        found = await case.monitor.scale(None, None)
        case.clock.now += RATE_SECONDS / 2
    assert found["jobs_per_second"] == 0.0, "what was taken longer ago does not count"
    case.clock.now += 1000.0
    fresh = case.bucket()
    case.servers.waiting = {bucket: BucketBacklog(10, 0, 0.0, 2660), fresh: BucketBacklog(0, 0, 0.0, 5000)}
    found = await case.monitor.scale(None, None)
    assert found["jobs_per_second"] == 2.0, "2060 in 1030 s; a bucket that is seen for the first time adds nothing"


async def test_a_silent_store_delays_nothing_and_its_buckets_are_named_unread(case: Case) -> None:
    bucket = case.bucket()
    case.servers.silent = True
    case.servers.answer.held.append(HeldJobs("default", MEDIUM, 4, 0, 1.0))
    found = await case.monitor.scale(None, None)
    assert (found["backlog_jobs"], found["buckets_unread"]) == (4, 1)
    case.servers.silent = False
    case.servers.waiting = {bucket: BucketBacklog(9, 0, 0.0, 0)}
    case.clock.now += EVERY_SECONDS
    found = await case.monitor.scale(None, None)
    assert (found["backlog_jobs"], found["buckets_unread"]) == (4, 1), "it is left alone until a PING was answered"


async def test_callers_share_a_look_and_one_that_gives_up_does_not_end_it(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    case.servers.gate = asyncio.Event()
    asked = [asyncio.create_task(case.monitor.scale(None, None)) for _ in range(5)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    asked[0].cancel()
    with monkeypatch.context() as shorter:
        shorter.setattr("jobmaster_agents.leader.backlog.ANSWER_SECONDS", 0.01)
        with pytest.raises(Unavailable, match="has not answered within"):
            await case.monitor.scale(None, None)
    case.servers.gate.set()
    answers = await asyncio.gather(*asked[1:])
    assert len(answers) == 4
    assert case.servers.looks == 1
    await case.monitor.scale(None, None)
    assert case.servers.looks == 1, "the last look is fresh enough"
    case.clock.now += EVERY_SECONDS
    await case.monitor.scale(None, None)
    assert case.servers.looks == 2


@pytest.mark.parametrize(
    ("jobs", "rate", "slots", "oldest", "seconds"),
    [
        (0, 5.0, 10, 0.0, 0.0),
        (100, 5.0, 10, 3.0, 20.0),
        (100, None, 10, 3.0, 10.0),
        (100, 0.0, 10, 300.0, 300.0),
        (100, None, 0, 3.0, 100.0),
    ],
    ids=["nothing waits", "at the rate", "unknown", "nothing is taken", "no agent"],
)
def test_how_long_the_waiting_jobs_take(
    jobs: int, rate: float | None, slots: int, oldest: float, seconds: float
) -> None:
    assert backlog_seconds(jobs, rate, slots, oldest) == seconds
