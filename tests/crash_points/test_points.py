"""The table of crash points is whole, its calls exist, and the program itself knows nothing of it."""

from __future__ import annotations

import inspect
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from jobmaster.agentstore.store import AgentStore
from jobmaster.master.master import Master
from jobmaster.master.transactions import Transaction
from jobmaster.model.cluster import ClusterRow
from tests.crash_points.crash_points import ABSENT, NAMED, POINTS, Situation
from tests.crash_points.faulty_ports import VARIABLE, Action, FaultDirectory, FaultSpec, FaultyPort
from tests.support.master_parts import PARTS
from tests.support.patience import PATIENCE_SECONDS
from tests.system.outages import test_crash_points, test_lost_replies

TREE = Path(__file__).parents[2]
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


@pytest.mark.slow
def test_what_is_installed_has_no_hook(tmp_path: Path) -> None:
    """An installed program injects no fault: neither the variable nor anything of these tests is in
    the wheel."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "wheel"]
    argv = [*pip, "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(tmp_path), str(TREE)]
    answer = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert answer.returncode == 0, answer.stderr
    (wheel,) = tmp_path.glob("jobmaster*.whl")
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
        assert len([name for name in names if name.endswith(".py")]) > 100
        assert {"jobmaster/__init__.py", "jobmaster_agents/__init__.py"} <= set(names)
        assert not [name for name in names if {"tests", "crash_points"} & set(Path(name).parts)]
        for name in names:
            found = packed.read(name)
            assert VARIABLE.encode() not in found, name
            assert b"tests.crash_points" not in found, name


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
