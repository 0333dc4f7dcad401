"""The table of crash points is whole, its calls exist, and the program itself knows nothing of it."""

from __future__ import annotations

import inspect
from importlib.metadata import files
from pathlib import Path

import jobmaster
import jobmaster_agents
import master_schema
from jobmaster.agentstore.store import AgentStore
from jobmaster.master.master import Master
from jobmaster.master.transactions import Transaction
from tests.cluster import test_crash_points, test_lost_replies
from tests.faults.points import ABSENT, NAMED, POINTS, Scene
from tests.faults.ports import VARIABLE, Action, FaultyPort, Order, Orders

PORTS = {"master": Master, "store": AgentStore, "transaction": Transaction}


def called(call: str) -> object:
    port, method = call.split(".")
    return getattr(PORTS[port], method)


def test_every_named_point_is_struck_or_excused() -> None:
    assert NAMED - POINTS.keys() == ABSENT.keys()
    assert not POINTS.keys() & ABSENT.keys()
    assert all(sentence.endswith(".") for sentence in ABSENT.values())


def test_every_point_is_a_call_of_a_port() -> None:
    for name, point in POINTS.items():
        if point.scene is not Scene.APART:
            assert inspect.iscoroutinefunction(called(point.call)), name
    for group in ("AT_WORK", "IN_A_RESCUE", "KEEPING_HOUSE", "ON_LEAVING", "AT_THE_START", "REPLACING"):
        assert all(inspect.iscoroutinefunction(called(call)) for call in getattr(test_lost_replies, group))


def test_every_point_of_its_own_kind_has_a_test() -> None:
    tests = [name for name in vars(test_crash_points) if name.startswith("test_")]
    apart = [name.lower() for name, point in POINTS.items() if point.scene is Scene.APART]
    assert [name for name in apart if not any(test.startswith(f"test_{name}_") for test in tests)] == []


def test_what_is_installed_has_no_hook() -> None:
    """Nobody can order a fault from a program that a user installs: neither the variable nor anything of these tests is in
    its packages."""
    roots = [Path(package.__path__[0]) for package in (jobmaster, jobmaster_agents, master_schema)]
    texts = [path for root in roots for path in root.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert len(texts) > 100
    for path in texts:
        found = path.read_bytes()
        assert VARIABLE.encode() not in found, path
        assert b"tests.faults" not in found, path
    assert not [file for file in files("jobmaster") or [] if "faults" in file.parts]


async def test_orders_strike_once_at_the_named_occurrence(tmp_path: Path) -> None:
    class Port:
        calls = 0

        async def write(self, word: str) -> str:
            Port.calls += 1
            return word.upper()

    orders = Orders(tmp_path)
    port = FaultyPort(Port(), "store", orders)
    orders.give("second", Order("store.write", Action.LOSE_REPLY, 2, "YES"))
    orders.give("unsent", Order("store.write", Action.FAIL, 1, "stop"))
    answers = []
    for word in ("yes", "no", "yes", "yes", "stop", "stop"):
        try:
            answers.append(await port.write(word))
        except Exception as error:
            answers.append(type(error).__name__)
    assert answers == ["YES", "NO", "OutcomeUnknown", "YES", "Unavailable", "STOP"]
    assert Port.calls == 5
    assert orders.done("second")
    assert not orders.waiting()
