"""Death certificates of child processes, written by short-lived processes (``certificate_main``).

The supervisor needs no database driver, and a hung connection cannot keep it from watching its children.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence

import msgspec

from jobmaster.rules.backoff import backoff_delay
from jobmaster_agents.event_log import Event, EventLog
from jobmaster_agents.launch.launch_order import CertificateRequest
from jobmaster_agents.supervisor.child_process import kill_unreaped


class _PendingCertificate:
    """One certificate to write, and the process that writes it."""

    __slots__ = ("attempts", "give_up_at", "next_at", "order", "process", "timeout_at")

    def __init__(self, order: CertificateRequest, now: float, give_up_at: float) -> None:
        self.order = order
        self.process: subprocess.Popen[bytes] | None = None
        self.attempts = 0
        self.next_at = now
        self.give_up_at = give_up_at
        self.timeout_at = 0.0


class DeathCertificates:
    """Starts, watches and repeats the processes that write death certificates. When the master cannot be reached until well
    after the lease has ended, it gives up: the failure detectors of other agents certify the agent then.

    Args:
        command: program that reads a ``CertificateRequest`` from standard input.
        on_written: called with the id of the dead agent.
        on_given_up: called with the id of the dead agent.
    """

    TIMEOUT_SECONDS = 10.0
    RETRY_SECONDS = 1.0
    RETRY_SECONDS_MAX = 16.0

    def __init__(
        self,
        command: Sequence[str],
        log: EventLog,
        on_written: Callable[[bytes], None],
        on_given_up: Callable[[bytes], None] = lambda agent_id: None,
    ) -> None:
        self._command = command
        self._log = log
        self._on_written = on_written
        self._on_given_up = on_given_up
        self._open: list[_PendingCertificate] = []

    def request(self, order: CertificateRequest, now: float) -> None:
        """Start to write a certificate."""
        patience = 3.0 * order.settings.leases.lease_seconds + self.TIMEOUT_SECONDS
        self._open.append(_PendingCertificate(order, now, now + patience))
        self.turn(now)

    @property
    def pending(self) -> bool:
        """True while a certificate is neither written nor given up."""
        return bool(self._open)

    def next_at(self) -> float:
        """Time of the next action, in CLOCK_BOOTTIME seconds; infinite when there is none."""
        return min((c.timeout_at if c.process else c.next_at for c in self._open), default=float("inf"))

    def turn(self, now: float) -> None:
        """Start processes that are due, kill those that take too long."""
        for certificate in self._open:
            if certificate.process is not None and now >= certificate.timeout_at:
                kill_unreaped(certificate.process)  # reaped as a failure
                certificate.timeout_at = now + self.TIMEOUT_SECONDS
            elif certificate.process is None and now >= certificate.next_at:
                self._start(certificate, now)

    def _start(self, certificate: _PendingCertificate, now: float) -> None:
        certificate.attempts += 1
        certificate.timeout_at = now + self.TIMEOUT_SECONDS
        certificate.next_at = now + backoff_delay(certificate.attempts, self.RETRY_SECONDS, self.RETRY_SECONDS_MAX)
        try:
            process = subprocess.Popen(list(self._command), stdin=subprocess.PIPE, start_new_session=True)
        except OSError as error:  # out of processes or memory: the next turn tries again
            self._log.warning(Event.CERTIFICATE_FAILED, {"dead": certificate.order.agent_id, "reason": str(error)})
            return
        certificate.process = process
        if process.stdin is not None:
            try:
                process.stdin.write(msgspec.json.encode(certificate.order))
                process.stdin.close()
            except BrokenPipeError:
                pass

    def reaped(self, pid: int, returncode: int, now: float) -> bool:
        """Note that a process ended; True when it was one of these."""
        found = next((c for c in self._open if c.process is not None and c.process.pid == pid), None)
        if found is None or found.process is None:
            return False
        found.process.returncode = returncode
        found.process = None
        fields = {"dead": found.order.agent_id, "reason": found.order.reason, "attempts": found.attempts}
        if returncode == 0:
            self._open.remove(found)
            self._log.info(Event.CERTIFICATE_WRITTEN, fields)
            self._on_written(found.order.agent_id)
        elif now >= found.give_up_at:
            self._open.remove(found)
            self._log.error(Event.CERTIFICATE_FAILED, {**fields, "left_to": "other agents"})
            self._on_given_up(found.order.agent_id)
        elif found.attempts == 1:
            self._log.warning(Event.CERTIFICATE_FAILED, fields)
        return True

    def abandon(self) -> None:
        """End all processes, because the supervisor exits."""
        for certificate in self._open:
            if certificate.process is not None:
                certificate.process.kill()
                certificate.process.wait()
        self._open.clear()
