"""What of a configuration that was read again takes effect at once, and what waits for a restart."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jobmaster.settings.model import (
    AgentSettings,
    BucketCounts,
    ClusterSettings,
    JobDefaults,
    Leases,
    SlotCounts,
    Tenants,
)
from jobmaster_agents.supervisor.config_reload import _LIVE, _LIVE_AGENT, apply_reload, key_of

OLD = ClusterSettings(agents={"default": AgentSettings(slots=5), "other": AgentSettings()})


def changed(**agent: Any) -> ClusterSettings:
    new = msgspec.structs.replace(OLD.agents["default"], **agent)
    return msgspec.structs.replace(OLD, agents={**OLD.agents, "default": new})


def test_nothing_changed_is_nothing() -> None:
    assert apply_reload(OLD, OLD, "default") == (OLD, [], [])


def test_counts_of_buckets_and_slots_take_effect() -> None:
    new = changed(buckets=BucketCounts(medium=3), slots=7)
    assert apply_reload(OLD, new, "default") == (new, ["agents.default.buckets", "agents.default.slots"], [])


def test_lanes_are_taken_whole() -> None:
    new = changed(lanes={"payroll": BucketCounts(), "default": BucketCounts()})
    found = apply_reload(OLD, new, "default")
    assert found.changed == ["agents.default.lanes"]
    assert found.settings.agents["default"].lanes == new.agents["default"].lanes
    back = apply_reload(new, OLD, "default")
    assert (back.settings, back.changed) == (OLD, ["agents.default.lanes"])


def test_slots_of_priorities_and_lanes_take_effect() -> None:
    new = changed(priority_slots=SlotCounts(low=1), lane_slots={"default": SlotCounts(high=9)})
    found = apply_reload(OLD, new, "default")
    assert found.settings == new
    assert found.changed == ["agents.default.lane_slots", "agents.default.priority_slots"]


def test_what_needs_a_restart_keeps_its_old_value_and_is_named_as_the_file_writes_it() -> None:
    new = msgspec.structs.replace(
        changed(threads=99),
        leases=Leases(lease_seconds=30.0, grace_seconds=1.0),
        jobs=JobDefaults(timeout_seconds=9.0, max_rescues=8),
        handlers=["more.jobs"],
    )
    found = apply_reload(OLD, new, "default")
    assert found.waiting == ["agents.default.threads", "handlers", "jobs.max_rescues", "leases.lease"]
    assert found.changed == ["jobs.timeout", "leases.grace"]
    assert found.settings.leases == Leases(grace_seconds=1.0)
    assert found.settings.agents == OLD.agents
    assert found.settings.handlers == []
    assert found.settings.jobs == JobDefaults(timeout_seconds=9.0)


def test_other_agents_are_their_own_supervisors_business() -> None:
    new = msgspec.structs.replace(OLD, agents={**OLD.agents, "other": AgentSettings(slots=1), "third": AgentSettings()})
    assert apply_reload(OLD, new, "default") == (OLD, [], [])


@pytest.mark.parametrize("weights", [{"acme": 3}, {"acme": 3, "zoo": 2}, {}])
def test_weights_of_tenants_take_effect(weights: dict[str, int]) -> None:
    old = msgspec.structs.replace(OLD, tenants=Tenants(weights={"acme": 1}))
    new = msgspec.structs.replace(OLD, tenants=Tenants(weights=weights))
    assert apply_reload(old, new, "default") == (new, ["tenants.weights"], [])


def test_the_page_names_what_takes_effect() -> None:
    page = Path(__file__).parents[4] / "docs" / "operations.md"
    [row] = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("| SIGHUP |")]
    named = {name.removeprefix("agents.<name>.") for name in re.findall(r"`([^`]+)`", row)}
    assert named == {*map(key_of, _LIVE), *_LIVE_AGENT}
