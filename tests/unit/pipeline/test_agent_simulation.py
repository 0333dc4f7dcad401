"""An agent on paper: against closed forms, against a slow reference, and what holds for any load."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobmaster.pipeline.plan.agent_simulation import Limits, Queue, kiefer_wolfowitz, waits_of_agent
from jobmaster.pipeline.plan.queueing import erlang_c

_JOBS = st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 900), st.integers(0, 2)), min_size=1, max_size=60).map(
    sorted
)
_QUEUES = st.lists(st.builds(Queue, st.integers(1, 5), st.integers(1, 3)), min_size=3, max_size=3)


def _reference(jobs: list[tuple[int, int, int]], queues: list[Queue], limits: Limits) -> list[int]:
    """The rules of the module, microsecond by microsecond."""
    waiting: list[list[int]] = [[] for _ in queues]
    running: list[tuple[int, int]] = []
    waits, now, free_at, left = [0] * len(jobs), 0, 0, len(jobs)
    while left:
        running = [(end, queue) for end, queue in running if end > now]
        for number, (ready, _, queue) in enumerate(jobs):
            if ready == now:
                waiting[queue].append(number)
        while now >= free_at and (limits.at_once is None or len(running) < limits.at_once):
            heads = [
                (-queues[at].urgency, line[0], at)
                for at, line in enumerate(waiting)
                if line and sum(queue == at for _, queue in running) < queues[at].slots
            ]
            if not heads:
                break
            _, number, at = min(heads)
            waiting[at].pop(0)
            waits[number] = now - jobs[number][0]
            running.append((now + jobs[number][1], at))
            left -= 1
            free_at = now + limits.start_us
            if not jobs[number][1]:
                running = [(end, queue) for end, queue in running if end > now]
        now += 1
    return waits


@given(jobs=_JOBS, queues=_QUEUES, at_once=st.none() | st.integers(1, 4), start_us=st.integers(0, 200))
def test_the_simulation_follows_its_rules(
    jobs: list[tuple[int, int, int]], queues: list[Queue], at_once: int | None, start_us: int
) -> None:
    limits = Limits(at_once, start_us)
    ready, service, queue_of = (list(column) for column in zip(*jobs, strict=True))
    assert waits_of_agent(ready, service, queue_of, queues, limits) == _reference(jobs, queues, limits)


@given(jobs=_JOBS, servers=st.integers(1, 4))
def test_one_bucket_is_a_queue_with_several_servers(jobs: list[tuple[int, int, int]], servers: int) -> None:
    """The shared way through the simulation gives what the recursion for one queue gives."""
    ready, service, _ = (list(column) for column in zip(*jobs, strict=True))
    queue_of = [0] * len(jobs)
    expected = kiefer_wolfowitz(ready, service, servers)
    assert waits_of_agent(ready, service, queue_of, [Queue(3, servers)]) == expected
    assert waits_of_agent(ready, service, queue_of, [Queue(3, 50)], Limits(servers)) == expected


@given(jobs=_JOBS, servers=st.integers(1, 4), factor=st.integers(2, 1000))
def test_more_servers_never_lengthen_a_wait_and_time_has_no_unit(
    jobs: list[tuple[int, int, int]], servers: int, factor: int
) -> None:
    ready, service, _ = (list(column) for column in zip(*jobs, strict=True))
    few = kiefer_wolfowitz(ready, service, servers)
    assert all(more <= less for more, less in zip(kiefer_wolfowitz(ready, service, servers + 1), few, strict=True))
    scaled = kiefer_wolfowitz([at * factor for at in ready], [run * factor for run in service], servers)
    assert scaled == [wait * factor for wait in few]


def test_urgent_jobs_start_first_where_buckets_share_a_limit() -> None:
    queues = [Queue(1, 5), Queue(5, 5)]
    waits = waits_of_agent([0, 1, 2, 3], [100, 100, 100, 100], [0, 0, 0, 1], queues, Limits(at_once=1))
    assert waits == [0, 199, 298, 97]


def test_starts_follow_one_another_at_the_processor_time_of_a_start() -> None:
    assert waits_of_agent([0, 0, 0], [1, 1, 1], [0, 0, 0], [Queue(3, 50)], Limits(start_us=250)) == [0, 250, 500]


@pytest.mark.slow
@pytest.mark.parametrize(("servers", "rate"), [(1, 7.0), (3, 24.0)])
def test_waits_of_poisson_arrivals_match_the_formula_within_five_per_cent(servers: int, rate: float) -> None:
    dice, at, ready = random.Random(4), 0.0, []
    for _ in range(500_000):
        at += dice.expovariate(rate)
        ready.append(int(at * 1e6))
    service = [int(dice.expovariate(10.0) * 1e6) for _ in ready]
    mean = sum(kiefer_wolfowitz(ready, service, servers)) / len(ready) / 1e6
    assert mean == pytest.approx(erlang_c(servers, rate / 10) / (servers * 10 - rate), rel=0.05)
