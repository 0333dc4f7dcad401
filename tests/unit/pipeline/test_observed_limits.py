"""Limits that a history shows: jobs at once and starts a second while others wait."""

from __future__ import annotations

import random

import pytest

from jobmaster.pipeline.plan.agent_simulation import Limits, Queue, waits_of_agent
from jobmaster.pipeline.plan.observed_limits import Observed, cause_of, limits_to_try, observe
from jobmaster.settings.model import AgentSettings

np = pytest.importorskip("numpy", reason="the extra `pipeline` is not installed")
CONFIGURED = Limits(at_once=500)


def _observed(rate: float, service_us: int, limits: Limits) -> Observed | None:
    dice, at, ready = random.Random(5), 0.0, []
    while (at := at + dice.expovariate(rate)) < 60:
        ready.append(int(at * 1e6))
    waits = waits_of_agent(ready, [service_us] * len(ready), [0] * len(ready), [Queue(3, 500)], limits)
    began = np.array(ready) + np.array(waits)
    return observe(np.array(ready), began, began + service_us)


def test_jobs_at_once_are_seen_where_jobs_wait() -> None:
    found = _observed(40.0, 200_000, Limits(at_once=7))
    assert found is not None
    assert found.at_once == pytest.approx(7, rel=0.05)
    assert found.starts_per_second == pytest.approx(35, rel=0.1)


def test_starts_a_second_are_seen_where_jobs_wait() -> None:
    found = _observed(300.0, 1000, Limits(start_us=4000))
    assert found is not None
    assert found.starts_per_second == pytest.approx(250, rel=0.05)


def test_without_waiting_jobs_no_limit_is_seen() -> None:
    assert _observed(20.0, 100_000, Limits()) is None
    assert observe(*(np.array([], dtype=np.int64) for _ in range(3))) is None
    assert limits_to_try([], 2, CONFIGURED) == [CONFIGURED]


def test_limits_are_those_of_one_agent_and_never_wider_than_the_settings() -> None:
    seen = [Observed(32.0, 400.0), Observed(31.0, 380.0)]
    assert limits_to_try(seen, 2, CONFIGURED) == [
        CONFIGURED, Limits(at_once=16), Limits(at_once=500, start_us=5000), Limits(16, 5000)
    ]  # fmt: skip
    assert limits_to_try([Observed(2000.0, 0.0)], 2, CONFIGURED) == [CONFIGURED]


def test_a_limit_is_named_after_its_setting() -> None:
    agent = AgentSettings()
    assert cause_of(CONFIGURED, CONFIGURED, agent) is None
    assert "`threads` is 16" in (cause_of(Limits(at_once=16), CONFIGURED, agent) or "")
    assert "`isolated_processes` is 2" in (cause_of(Limits(at_once=2), CONFIGURED, agent) or "")
    assert "processors or a server" in (cause_of(Limits(at_once=7), CONFIGURED, agent) or "")
    assert "started 200 jobs a second" in (cause_of(Limits(500, 5000), CONFIGURED, agent) or "")
