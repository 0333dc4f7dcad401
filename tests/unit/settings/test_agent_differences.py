"""Settings that agents should have in common, and their differences."""

from __future__ import annotations

import msgspec

from jobmaster import Handlers
from jobmaster.settings.agent_differences import common, declared, declared_differently, differences
from jobmaster.settings.model import ClusterSettings, JobDefaults, Leases

PLAIN = ClusterSettings()


def test_leases_thresholds_rescues_and_snoozes_are_published_by_their_keys() -> None:
    found = common(PLAIN)
    assert found["leases.lease"] == 10.0
    assert found["thresholds.transfer_batch"] == 1000
    assert found["jobs.max_rescues"] == 3
    assert found["jobs.max_snoozes"] == 1000
    assert "leases.grace" not in found, "each agent's own affair"


def test_what_differs_is_named_with_its_values_and_agents() -> None:
    other = msgspec.structs.replace(
        PLAIN, leases=Leases(lease_seconds=20.0, grace_seconds=1.0), jobs=JobDefaults(max_rescues=5)
    )
    published = [("a", common(PLAIN)), ("b", common(other)), ("c", common(PLAIN)), ("old", {})]
    assert differences(published) == [
        "jobs.max_rescues is 3 on a, c and 5 on b",
        "leases.lease is 10.0 on a, c and 20.0 on b",
    ]
    assert differences([("a", common(PLAIN)), ("c", common(PLAIN))]) == []


def test_arguments_of_handlers_are_compared_apart_from_settings() -> None:
    one, two = Handlers(), Handlers()
    one.job(name="send", timeout=5)(lambda to: None)
    two.job(name="send", timeout=9)(lambda to: None)
    other = Handlers()
    other.job(name="send")(lambda to, subject: None)
    published = [
        (name, {**common(PLAIN), **declared(handler.spec for handler in handlers)})
        for name, handlers in (("a", one), ("b", two), ("c", other))
    ]
    assert differences(published) == []
    assert declared_differently(published[:2]) == [], "other options are no other arguments"
    assert declared_differently(published) == ["handler send takes other arguments on a, b than on c"]
