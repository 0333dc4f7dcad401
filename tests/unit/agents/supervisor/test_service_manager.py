"""What the supervisor sends to systemd, over a real socket."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jobmaster_agents.supervisor.service_manager import ServiceManager
from tests.support.patience import PATIENCE_SECONDS
from tests.support.service_socket import ServiceSocket
from tests.support.waiting import wait_until
from tests.unit.agents.supervisor.test_supervisor import SupervisorRun, start

__all__ = ("start",)

WATCHDOG_SECONDS = 0.3


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServiceSocket]:
    """The socket of a service manager, named in the environment of what this test starts."""
    with ServiceSocket(tmp_path / "notify") as manager:
        for name, value in manager.environment(WATCHDOG_SECONDS).items():
            monkeypatch.setenv(name, value)
        yield manager


def test_ready_watchdog_reload_and_stop_are_announced(
    start: Callable[..., SupervisorRun], manager: ServiceSocket
) -> None:
    run = start(reloaded="{}")
    assert manager.until("READY=1")["STATUS"] == "1 of 1 agents serve"
    manager.until("WATCHDOG=1")
    run.process.send_signal(signal.SIGHUP)
    assert int(manager.until("RELOADING=1")["MONOTONIC_USEC"]) <= time.monotonic_ns() // 1000
    assert manager.until("READY=1")["STATUS"] == "The configuration was read again"
    run.process.send_signal(signal.SIGTERM)
    manager.until("STOPPING=1")
    assert run.wait(PATIENCE_SECONDS) == 0


def test_a_reload_that_is_refused_is_over_too_and_the_status_has_the_reason(
    start: Callable[..., SupervisorRun], manager: ServiceSocket
) -> None:
    run = start(reloaded="nothing")
    manager.until("READY=1")
    run.process.send_signal(signal.SIGHUP)
    manager.until("RELOADING=1")
    assert "could not be used" in manager.until("READY=1")["STATUS"]


@pytest.mark.slow
def test_a_hung_loop_that_cannot_be_killed_ends_the_messages_of_the_watchdog(
    start: Callable[..., SupervisorRun], manager: ServiceSocket
) -> None:
    """The supervisor still runs and answers signals; only the progress of its agent is missing."""
    run = start(child="blocked", lease_seconds=1.0, unkillable=True)
    manager.until("WATCHDOG=1")
    wait_until(lambda: run.events("child_killed"), 20.0, "the kill that has no effect")
    manager.drain()
    wait_until(lambda: manager.quiet_for(5 * WATCHDOG_SECONDS), 20.0, "no further message")
    run.process.send_signal(signal.SIGTERM)
    (first, *_) = manager.until_any()
    assert first == "STOPPING=1", "no WATCHDOG=1 before it"
    os.kill(run.pid(), signal.SIGKILL)
    run.wait(PATIENCE_SECONDS)


@pytest.mark.slow
def test_a_hung_loop_that_is_replaced_does_not_end_them(
    start: Callable[..., SupervisorRun], manager: ServiceSocket
) -> None:
    run = start(child="blocked", lease_seconds=1.0)
    run.children(3)
    manager.drain()
    manager.until("WATCHDOG=1")


def test_children_do_not_inherit_the_socket() -> None:
    environment = {"NOTIFY_SOCKET": "", "WATCHDOG_USEC": "1", "WATCHDOG_PID": str(os.getpid()), "HOME": "/"}
    ServiceManager.from_environment(environment).close()
    assert environment == {"HOME": "/"}


def test_a_watchdog_of_another_process_is_not_answered(tmp_path: Path) -> None:
    with ServiceSocket(tmp_path / "notify") as manager:
        environment = manager.environment(1.0) | {"WATCHDOG_PID": "1"}
        ours = ServiceManager.from_environment(environment)
        ours.turn(0.0, progress=True)
        ours.stopping()
        assert manager.until_any()[0] == "STOPPING=1"
        ours.close()


def test_a_name_in_the_abstract_space_and_a_manager_that_is_gone() -> None:
    name = f"jobmaster-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(f"\0{name}")
        ours = ServiceManager(f"@{name}")
        ours.stopping()
        assert receiver.recv(4096).startswith(b"STOPPING=1")
    ours.stopping()
    ours.close()
    ours.stopping()
