"""The table of crash points is whole, and its calls exist."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from jobmaster.agentstore.store import AgentStore
from jobmaster.master.master import Master
from jobmaster.master.transactions import Transaction
from jobmaster.model.cluster import ClusterRow
from tests.crash_points.crash_points import ABSENT, NAMED, POINTS, Situation
from tests.crash_points.faulty_ports import Action, FaultDirectory, FaultSpec, FaultyPort
from tests.support.master_parts import PARTS
from tests.system.outages import test_crash_points, test_lost_replies

_CALLS: Any = None
MASTER = Master(ClusterRow("", b""), "", _CALLS, _CALLS, _CALLS)
PORTS = {"master": [getattr(MASTER, part) for part in PARTS], "store": [AgentStore], "transaction": [Transaction]}


def called(call: str) -> object:
    port, method = call.split(".")
    return next(getattr(part, method) for part in PORTS[port] if hasattr(part, method))


def test_every_named_point_is_struck_or_excused() -> None:
    assert NAMED - POINTS.keys() == ABSENT.keys()
    assert not POINTS.keys() & ABSENT.keys()
    assert all(sentence.endswith(".") for sentence in ABSENT.values())


def test_every_part_of_the_master_is_known() -> None:
    notices = "due_notices"  # it listens: no statement of it changes anything
    assert {name for name in vars(MASTER) if not name.startswith("_")} == {"cluster", notices, *PARTS}


def test_every_point_is_a_call_of_a_port() -> None:
    for name, point in POINTS.items():
        if point.situation is not Situation.APART:
            assert inspect.iscoroutinefunction(called(point.call)), name
    for group in ("AT_WORK", "IN_A_RESCUE", "KEEPING_HOUSE", "ON_LEAVING", "AT_THE_START", "REPLACING"):
        assert all(inspect.iscoroutinefunction(called(call)) for call in getattr(test_lost_replies, group))


def test_every_point_of_its_own_kind_has_a_test() -> None:
    tests = [name for name in vars(test_crash_points) if name.startswith("test_")]
    apart = [name.lower() for name, point in POINTS.items() if point.situation is Situation.APART]
    assert [name for name in apart if not any(test.startswith(f"test_{name}_") for test in tests)] == []


async def test_orders_strike_once_at_the_named_occurrence(tmp_path: Path) -> None:
    class Port:
        calls = 0

        async def write(self, word: str) -> str:
            Port.calls += 1
            return word.upper()

    faults = FaultDirectory(tmp_path)
    port = FaultyPort(Port(), "store", faults)
    faults.give("second", FaultSpec("store.write", Action.LOSE_REPLY, 2, "YES"))
    faults.give("unsent", FaultSpec("store.write", Action.FAIL, 1, "stop"))
    answers = []
    for word in ("yes", "no", "yes", "yes", "stop", "stop"):
        try:
            answers.append(await port.write(word))
        except Exception as error:
            answers.append(type(error).__name__)
    assert answers == ["YES", "NO", "OutcomeUnknown", "YES", "Unavailable", "STOP"]
    assert Port.calls == 5
    assert faults.done("second")
    assert not faults.waiting()
