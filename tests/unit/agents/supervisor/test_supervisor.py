"""The supervisor, with real processes and real signals."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from jobmaster_agents.supervisor.restart_policy import AWAY_SECONDS_MAX
from jobmaster_agents.supervisor.supervisor import exit_text
from tests.support.patience import PATIENCE_SECONDS
from tests.support.processes import alive
from tests.support.waiting import wait_until
from tests.unit.agents.supervisor.supervised_programs import HERE, Behaviour

pytestmark = pytest.mark.slow

Line = dict[str, object]


class SupervisorRun:
    """One supervisor under test."""

    def __init__(self, directory: Path, behaviour: Behaviour) -> None:
        self.directory = directory
        (directory / "behaviour.json").write_bytes(msgspec.json.encode(behaviour))
        self.log = directory / "log"
        root = Path(HERE).parents[4]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, HERE, "supervisor", str(directory)],
                stderr=log,
                env={**os.environ, "PYTHONPATH": f"{root}:{root / 'agents'}"},
            )

    def events_of(self, what: str) -> list[Line]:
        path = self.directory / "events.jsonl"
        if not path.exists():
            return []
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        return [line for line in lines if line["what"] == what]

    def events(self, event: str) -> list[Line]:
        lines = [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]
        return [line for line in lines if line.get("event") == event]

    def children(self, count: int) -> list[Line]:
        """Wait until so many children have started in all."""
        wait_until(lambda: len(self.events_of("child")) >= count, 20.0, f"{count} children")
        return self.events_of("child")

    def pid(self, child: int = 0) -> int:
        """Process id of the n-th child that ever started."""
        pid = self.children(child + 1)[child]["pid"]
        assert isinstance(pid, int)
        return pid

    def wait(self, seconds: float = 20.0) -> int:
        return self.process.wait(seconds)

    def clean_up(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for line in self.events_of("child"):
            pid = line["pid"]
            assert isinstance(pid, int)
            wait_until(lambda pid=pid: not alive(pid), 5.0, "every child gone after its supervisor")  # type: ignore[misc]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., SupervisorRun]]:
    runs: list[SupervisorRun] = []

    def begin(**behaviour: object) -> SupervisorRun:
        run = SupervisorRun(tmp_path, msgspec.convert(behaviour, Behaviour))
        runs.append(run)
        return run

    yield begin
    for run in runs:
        run.clean_up()


# ---------------------------------------------------------------- a child dies


def test_a_killed_child_is_certified_at_once_and_replaced_by_a_new_agent(start: Callable[..., SupervisorRun]) -> None:
    run = start(processes=2, lease_seconds=600.0)
    run.children(2)
    killed = run.events_of("child")[0]
    os.kill(run.pid(0), signal.SIGKILL)
    wait_until(lambda: len(run.events_of("certificate")) == 1, 5.0, "a certificate")
    certificate = run.events_of("certificate")[0]
    assert certificate["agent"] == killed["agent"]
    assert certificate["reason"] == "supervisor saw it end: signal 9 (SIGKILL)"
    successor = run.children(3)[2]
    assert successor["index"] == killed["index"]
    assert successor["agent"] not in {line["agent"] for line in run.events_of("child")[:2]}


def test_the_siblings_get_the_rescue_message_when_the_certificate_is_written(
    start: Callable[..., SupervisorRun],
) -> None:
    run = start(processes=2)
    run.children(2)
    sibling = run.pid(1)
    os.kill(run.pid(0), signal.SIGKILL)
    wait_until(
        lambda: any(line["pid"] == sibling for line in run.events_of("word")), 5.0, "the sibling gets the message"
    )
    shown = next(line for line in run.events_of("word") if line["pid"] == sibling)
    assert shown["word"] == "rescue"
    assert float(str(shown["at"])) >= float(str(run.events_of("certificate")[0]["at"]))


def test_the_successor_gets_it_too_even_before_it_reads(start: Callable[..., SupervisorRun]) -> None:
    run = start()
    os.kill(run.pid(0), signal.SIGKILL)
    successor = run.pid(1)
    wait_until(
        lambda: any(line["pid"] == successor for line in run.events_of("word")), 5.0, "the successor gets the message"
    )


def test_a_process_that_fenced_itself_is_replaced(start: Callable[..., SupervisorRun]) -> None:
    run = start(child="crash once")
    run.children(2)
    wait_until(lambda: len(run.events_of("certificate")) == 1, 5.0, "a certificate")
    assert "exit code 75" in str(run.events_of("certificate")[0]["reason"])


def test_a_certificate_that_cannot_be_written_is_tried_again(start: Callable[..., SupervisorRun]) -> None:
    run = start(certificates_fail=2)
    os.kill(run.pid(0), signal.SIGKILL)
    wait_until(lambda: len(run.events_of("certificate")) == 1, 10.0, "a certificate in the end")
    assert run.events("certificate_failed")


def test_workers_of_a_killed_child_die_with_it(start: Callable[..., SupervisorRun]) -> None:
    run = start(child="parent")
    worker = int(str(run.children(1)[0]["worker"]))
    assert alive(worker)
    os.kill(run.pid(0), signal.SIGKILL)
    wait_until(lambda: not alive(worker), 3.0, "the worker is gone")
    run.children(2)


def test_a_crash_loop_is_named_and_slowed_down(start: Callable[..., SupervisorRun]) -> None:
    run = start(child="crash")
    wait_until(lambda: len(run.events("crash_loop")) >= 2, 20.0, "the crash loop is named")
    first, second = run.events("crash_loop")[:2]
    assert first["deaths_in_a_row"] == 3
    assert float(str(second["next_start_seconds"])) > float(str(first["next_start_seconds"]))
    assert len({line["agent"] for line in run.events_of("child")}) == len(run.events_of("child"))


def test_a_child_that_can_never_work_ends_the_supervisor_with_its_exit_code(
    start: Callable[..., SupervisorRun],
) -> None:
    run = start(child="hopeless", processes=2)
    assert run.wait() == 78
    assert not run.events_of("certificate")


def test_so_does_one_whose_registration_is_refused(start: Callable[..., SupervisorRun]) -> None:
    """It counts as registered from before it asks. Of what it may have left there is a certificate."""
    run = start(child="forbidden", processes=2)
    assert run.wait(PATIENCE_SECONDS) == 77
    assert not run.events("child_refused")
    assert not run.events("crash_loop")
    assert run.events_of("certificate")


def test_a_later_refusal_of_a_child_stops_no_sibling(start: Callable[..., SupervisorRun]) -> None:
    """A password that is wrong for a minute, a migration that this program does not know yet."""
    run = start(processes=2, lease_seconds=600.0)
    run.children(2)
    indexes = [line["index"] for line in run.events_of("child")]
    living = run.pid(1)
    (run.directory / "refuse").touch()
    os.kill(run.pid(0), signal.SIGKILL)
    wait_until(lambda: len(run.events("child_refused")) >= 3, PATIENCE_SECONDS, "it is tried again")
    waits = [float(str(line["next_start_seconds"])) for line in run.events("child_refused")[:3]]
    assert waits == sorted(waits)
    assert waits[0] < waits[-1]
    assert alive(living)
    assert run.process.poll() is None
    assert not run.events_of("term"), "no child gets a signal to leave"
    (run.directory / "refuse").unlink()
    assert run.children(3)[2]["index"] == indexes[0]
    assert alive(living)
    run.process.send_signal(signal.SIGTERM)
    assert run.wait(PATIENCE_SECONDS) == 0


def test_also_when_every_child_is_refused_that_was_accepted_before(start: Callable[..., SupervisorRun]) -> None:
    run = start()
    run.children(1)
    (run.directory / "refuse").touch()
    os.kill(run.pid(0), signal.SIGKILL)
    wait_until(lambda: len(run.events("child_refused")) >= 2, PATIENCE_SECONDS, "it is tried again")
    (run.directory / "refuse").unlink()
    run.children(2)


def test_what_happened_in_its_place_is_shown_to_the_next_child(start: Callable[..., SupervisorRun]) -> None:
    """So that deaths, kills and certificates are in the metrics of the process that came after."""
    run = start(processes=2, lease_seconds=1.0)
    run.children(2)
    index = run.events_of("child")[0]["index"]
    os.kill(run.pid(0), signal.SIGSTOP)  # killed at the end of its lease

    def counters() -> dict[object, dict[str, int]]:
        return {line["index"]: line["counters"] for line in run.events_of("counters")}  # type: ignore[misc]

    def shown() -> bool:
        found = counters().get(index, {})
        return (found.get("deaths"), found.get("kills"), found.get("certificates")) == (1, 1, 1)

    wait_until(shown, PATIENCE_SECONDS, "the counters of its place")
    assert counters()[index]["deaths_in_a_row"] == 1
    other = next(line["index"] for line in run.events_of("child") if line["index"] != index)
    assert counters().get(other, {"deaths": 0})["deaths"] == 0


def test_a_first_start_that_is_refused_ends_with_its_exit_code(
    start: Callable[..., SupervisorRun], tmp_path: Path
) -> None:
    (tmp_path / "refuse").touch()
    run = start(processes=2)
    assert run.wait(PATIENCE_SECONDS) == 77
    assert not run.events("child_refused")
    assert not run.events_of("child")


# ---------------------------------------------------------------- a child outlives its lease


def test_a_frozen_child_is_killed_when_its_lease_ends(start: Callable[..., SupervisorRun]) -> None:
    run = start(lease_seconds=1.0)
    pid = run.pid(0)
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: not alive(pid), 5.0, "the frozen child is gone")
    assert run.events("child_killed")[0]["reason"] == "its lease has ended"
    wait_until(lambda: len(run.events_of("certificate")) == 1, 5.0, "a certificate")


def test_a_child_whose_loop_stalls_shows_its_stack_and_is_killed(start: Callable[..., SupervisorRun]) -> None:
    run = start(lease_seconds=1.0, child="blocked")
    pid = run.pid(0)
    wait_until(lambda: not alive(pid), 5.0, "the stalled child is gone")
    wait_until(lambda: "block_the_loop" in run.log.read_text(), 2.0, "the stack names the culprit")
    assert run.events("child_overdue")


def test_a_healthy_child_is_left_alone_over_many_leases(start: Callable[..., SupervisorRun]) -> None:
    run = start(lease_seconds=1.0)
    pid = run.pid(0)
    end = time.monotonic() + 2.5
    wait_until(lambda: time.monotonic() > end, 5.0, "two leases are over")
    assert alive(pid)
    assert not run.events("child_killed")


def test_without_supervisor_the_kernel_ends_a_frozen_child_before_its_next_instruction(
    start: Callable[..., SupervisorRun],
) -> None:
    run = start(lease_seconds=0.5, kernel_timer=True, child="deaf")
    pid = run.pid(0)
    os.kill(pid, signal.SIGSTOP)
    run.process.kill()
    run.process.wait()
    pending = re.compile(r"^ShdPnd:\s*([0-9a-f]+)$", re.MULTILINE)

    def alarm_pending() -> bool:
        found = pending.search(Path(f"/proc/{pid}/status").read_text())
        return found is not None and bool(int(found[1], 16) & 1 << (signal.SIGALRM - 1))

    wait_until(alarm_pending, 5.0, "the kernel's timer has fired")
    before = len(run.events_of("orphaned"))
    os.kill(pid, signal.SIGCONT)
    wait_until(lambda: not alive(pid), 1.0, "the child is gone")
    assert len(run.events_of("orphaned")) == before  # its threads never ran again


# ---------------------------------------------------------------- the supervisor dies


def test_a_child_leaves_at_its_supervisors_death_and_not_when_its_lease_ends(
    start: Callable[..., SupervisorRun],
) -> None:
    run = start(processes=2, lease_seconds=600.0)
    pids = [run.pid(0), run.pid(1)]
    run.process.kill()
    wait_until(lambda: not any(map(alive, pids)), 5.0, "the children are gone")
    assert len(run.events_of("orphaned")) == 2


def test_even_a_child_that_will_not_leave_goes_with_all_its_workers(start: Callable[..., SupervisorRun]) -> None:
    run = start(child="blocked", lease_seconds=600.0)
    pid = run.pid(0)
    run.process.kill()
    wait_until(lambda: not alive(pid), 5.0, "the stalled child is gone")


# ---------------------------------------------------------------- stopping


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_lets_the_children_leave_in_order(start: Callable[..., SupervisorRun], signum: int) -> None:
    run = start(processes=2)
    run.children(2)
    run.process.send_signal(signum)
    assert run.wait() == 0
    assert len(run.events_of("term")) == 2
    assert not run.events_of("certificate")


def test_the_second_signal_ends_the_grace_period(start: Callable[..., SupervisorRun]) -> None:
    run = start(child="stubborn", grace_seconds=600.0)
    run.children(1)
    run.process.send_signal(signal.SIGTERM)
    wait_until(lambda: len(run.events_of("term")) == 1, 5.0, "the first signal arrives")
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 0
    assert len(run.events_of("term")) == 2


def test_a_child_that_does_not_leave_in_time_is_killed_and_certified(start: Callable[..., SupervisorRun]) -> None:
    run = start(child="deaf", grace_seconds=0.0)
    run.children(1)
    run.process.send_signal(signal.SIGTERM)
    wait_until(lambda: len(run.events_of("term")) == 1, 5.0, "the first signal arrives")
    assert run.wait() == 1
    assert run.events("child_killed")[0]["reason"] == "it did not leave in time"
    assert len(run.events_of("certificate")) == 1


def test_a_child_that_dies_while_stopping_is_certified_and_not_replaced(start: Callable[..., SupervisorRun]) -> None:
    run = start(child="stubborn", grace_seconds=600.0)
    pid = run.pid(0)
    run.process.send_signal(signal.SIGTERM)
    wait_until(lambda: len(run.events_of("term")) == 1, 5.0, "the first signal arrives")
    os.kill(pid, signal.SIGKILL)
    assert run.wait() == 1
    assert len(run.events_of("certificate")) == 1
    assert len(run.events_of("child")) == 1


def test_a_hangup_without_a_configuration_is_refused_and_changes_nothing(start: Callable[..., SupervisorRun]) -> None:
    run = start()
    pid = run.pid(0)
    run.process.send_signal(signal.SIGHUP)
    wait_until(lambda: bool(run.events("reload_refused")), 5.0, "the hangup is logged")
    assert alive(pid)


@pytest.mark.parametrize("text", ['{"jobs": {"durability": "unheard of"}}', '{"jobs":', "Traceback"])
def test_settings_that_the_supervisor_cannot_decode_are_refused_and_end_no_child(
    start: Callable[..., SupervisorRun], text: str
) -> None:
    """Another version was installed under a supervisor that runs."""
    run = start(reloaded=text)
    pid = run.pid(0)
    run.process.send_signal(signal.SIGHUP)
    wait_until(lambda: bool(run.events("reload_refused")), 5.0, "the refusal is logged")
    assert "restart the supervisor" in str(run.events("reload_refused")[0]["reason"])
    assert alive(pid)
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 0


# ---------------------------------------------------------------- its own weight


def test_the_supervisor_stays_small(start: Callable[..., SupervisorRun]) -> None:
    run = start(processes=2)
    os.kill(run.pid(0), signal.SIGKILL)
    wait_until(lambda: len(run.events_of("certificate")) == 1, 5.0, "a certificate")
    status = Path(f"/proc/{run.process.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found is not None
    assert int(found[1]) <= 30 * 1024


def test_an_agent_that_cannot_reach_a_server_is_started_again_every_few_seconds(
    start: Callable[..., SupervisorRun],
) -> None:
    run = start(child="unavailable")
    wait_until(lambda: len(run.events("crash_loop")) >= 4, 20.0, "six deaths in a row")
    waits = [line["next_start_seconds"] for line in run.events("crash_loop")[:4]]
    assert waits == [1.0, 2.0, AWAY_SECONDS_MAX, AWAY_SECONDS_MAX]


def test_exits_have_a_text() -> None:
    assert exit_text(0) == "exit code 0"
    assert exit_text(-9) == "signal 9 (SIGKILL)"
    assert exit_text(-64) in ("signal 64 (SIGRTMAX)", "signal 64")
