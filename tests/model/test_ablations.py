"""A protocol with a rule less breaks the promise that the rule is there for."""

from __future__ import annotations

from dataclasses import fields

import pytest

from tests.model.ablations import ABLATIONS, SECOND_LINES
from tests.model.bucket_protocol import BucketProtocol
from tests.model.explorer import explore
from tests.model.fault_sets import FAULT_SETS
from tests.model.rules import Rules

_QUICK_STATES = 4000
_TIMES = 2
"""How much longer than measured a detection may take before its place in the table is wrong."""
QUICK = [name for name, each in ABLATIONS.items() if each.states <= _QUICK_STATES]
OTHERS = [name for name in ABLATIONS if name not in QUICK]
WITHOUT = {
    "in_flight_only": Rules(in_flight_only=False),
    "held_clears_bucket": Rules(held_clears_bucket=False),
    "rescuer_lock": Rules(rescuer_lock=False),
    "leader_sweep": Rules(leader_sweep=False),
    "counter_floor": Rules(counter_floor=False),
}
_QUIET = (
    "emergency stop",
    "retry here twice",
    "sent to the master",
    "unaware rescuer",
    "store rolled back, sent twice",
)


def assert_breaks(name: str) -> None:
    ablation = ABLATIONS[name]
    report = explore(BucketProtocol(FAULT_SETS[ablation.fault_set].scope, ablation.rules))
    assert report.violation is not None, f"{ablation.fault_set} does not need the rule"
    assert report.violation.kind == ablation.kind
    assert report.states <= _TIMES * ablation.states


@pytest.mark.parametrize("name", QUICK)
def test_without_the_rule_a_promise_breaks(name: str) -> None:
    assert_breaks(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_without_the_rule_a_promise_breaks_later(name: str) -> None:
    assert_breaks(name)


@pytest.mark.slow
@pytest.mark.parametrize(
    "rule", [name if name == "rescuer_lock" else pytest.param(name, marks=pytest.mark.long) for name in WITHOUT]
)
def test_a_second_line_is_not_needed_alone(rule: str) -> None:
    for name in _QUIET:
        report = explore(BucketProtocol(FAULT_SETS[name].scope, WITHOUT[rule]))
        assert report.violation is None, f"{rule} is needed in {name}: it belongs among the ablations"


def test_second_lines_are_tried() -> None:
    assert WITHOUT.keys() == SECOND_LINES.keys()


def test_every_rule_is_ablated_or_a_second_line() -> None:
    on = Rules()
    ablated = {
        field.name for each in ABLATIONS.values() for field in fields(Rules)
        if getattr(each.rules, field.name) != getattr(on, field.name)
    }  # fmt: skip
    assert ablated | SECOND_LINES.keys() == {field.name for field in fields(Rules)}
