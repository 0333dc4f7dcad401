"""Processes that a supervisor starts for a moment, and reaps with all others, also those that end when their time is over."""

from __future__ import annotations

import os

from jobmaster.clock import new_id
from jobmaster.settings.model import ClusterSettings
from jobmaster_agents.event_log import EventLog
from jobmaster_agents.launch.launch_order import CertificateRequest
from jobmaster_agents.supervisor.config_reload import ConfigReload
from jobmaster_agents.supervisor.death_certificates import DeathCertificates

LATE = 1e12


def ended(pid: int) -> None:
    """Wait for the end of a child, and leave it to be reaped."""
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def test_a_read_that_ends_when_its_time_is_over_is_reaped_by_the_supervisor() -> None:
    read: list[int] = []
    reload = ConfigReload(["true"], lambda code, out, err: read.append(code))
    reload.start(0.0)
    assert reload._process is not None
    pid = reload._process.pid
    ended(pid)
    reload.turn(LATE)
    assert os.waitpid(pid, 0) == (pid, 0)
    assert reload.reaped(pid, 0, LATE)
    assert read == [0]


def test_a_certificate_that_is_written_when_its_time_is_over_is_reaped_by_the_supervisor() -> None:
    written: list[bytes] = []
    certificates = DeathCertificates(["true"], EventLog(), written.append)
    agent_id = new_id()
    certificates.request(CertificateRequest(settings=ClusterSettings(), agent_id=agent_id, reason="test"), 0.0)
    (pending,) = certificates._open
    assert pending.process is not None
    pid = pending.process.pid
    ended(pid)
    certificates.turn(LATE)
    assert os.waitpid(pid, 0) == (pid, 0)
    assert certificates.reaped(pid, 0, LATE)
    assert written == [agent_id]
