"""One child process of a supervisor: started in its own process group, spoken to through its control pipe, killed with all
its own children. Also the short-lived writers of death certificates.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Sequence

import msgspec

from jobmaster.rules.backoff import backoff_delay
from jobmaster_agents.event_log import Event, EventLog
from jobmaster_agents.launch.order import CertificateOrder, ControlMessage, LaunchOrder, write_order
from jobmaster_agents.launch.shared_deadline import AgentPhase, Deadline

STACKS_SIGNAL = signal.SIGUSR2


class Child:
    """A running agent process."""

    def __init__(self, command: Sequence[str], order: LaunchOrder, now: float) -> None:
        self.order = order
        self.started_at = now
        self.overdue = False
        """True once its stacks were asked for."""
        self.killed = False
        self.deadline, deadline_fd = Deadline.create()
        read_end, self._control = os.pipe()
        try:
            self.process = subprocess.Popen(
                [*command, str(read_end), str(deadline_fd)],
                stdin=subprocess.DEVNULL,
                pass_fds=(read_end, deadline_fd),
                # Its own group: a terminal's Ctrl-C reaches the supervisor alone, and a kill reaches its workers too.
                start_new_session=True,
            )
        except OSError:
            os.close(self._control)
            self.deadline.close()
            raise
        finally:
            os.close(read_end)
            os.close(deadline_fd)
        try:
            write_order(self._control, order)
        except BrokenPipeError:
            pass  # it died at once: its exit is reaped like any other
        os.set_blocking(self._control, False)

    @property
    def pid(self) -> int:
        """Process id, also that of its group."""
        return self.process.pid

    def tell(self, word: ControlMessage, more: bytes = b"") -> None:
        """Say a word; a child that does not listen is not waited for."""
        try:
            os.write(self._control, word.encode() + (b" " + more if more else b"") + b"\n")
        except (BlockingIOError, BrokenPipeError):
            pass

    def send(self, signum: int) -> None:
        """A signal to the child alone."""
        try:
            os.kill(self.pid, signum)
        except ProcessLookupError:
            pass

    def kill(self) -> None:
        """SIGKILL to the child and everything it started; a stopped process dies of it too."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def close(self, returncode: int) -> AgentPhase:
        """After it was reaped: end its group, give descriptors back. Returns how far it had come."""
        self.process.returncode = returncode
        self.kill()
        os.close(self._control)
        phase = self.deadline.phase
        self.deadline.close()
        return phase


class _Certificate:
    """One certificate to write, and the process that tries to."""

    __slots__ = ("attempts", "give_up_at", "next_at", "order", "process", "timeout_at")

    def __init__(self, order: CertificateOrder, now: float, give_up_at: float) -> None:
        self.order = order
        self.process: subprocess.Popen[bytes] | None = None
        self.attempts = 0
        self.next_at = now
        self.give_up_at = give_up_at
        self.timeout_at = 0.0


class DeathCertificates:
    """Writes death certificates through short-lived processes, so that the supervisor needs no database driver and no
    hung connection can keep it from watching its children. When the master cannot be reached until well after the lease
    has ended, the other agents judge anyway.
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
        self._open: list[_Certificate] = []

    def ask(self, order: CertificateOrder, now: float) -> None:
        """Begin to write one."""
        patience = 3.0 * order.settings.leases.lease_seconds + self.TIMEOUT_SECONDS
        self._open.append(_Certificate(order, now, now + patience))
        self.turn(now)

    @property
    def pending(self) -> bool:
        """True while one is neither written nor given up."""
        return bool(self._open)

    def next_at(self) -> float:
        """When something must be done if nothing happens before."""
        return min((c.timeout_at if c.process else c.next_at for c in self._open), default=float("inf"))

    def turn(self, now: float) -> None:
        """Start what is due, end what takes too long."""
        for certificate in self._open:
            if certificate.process is not None and now >= certificate.timeout_at:
                certificate.process.kill()  # reaped as a failure
                certificate.timeout_at = now + self.TIMEOUT_SECONDS
            elif certificate.process is None and now >= certificate.next_at:
                self._start(certificate, now)

    def _start(self, certificate: _Certificate, now: float) -> None:
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
        """A process ended; True when it was one of these."""
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
            self._log.error(Event.CERTIFICATE_FAILED, {**fields, "left_to": "the judgement of other agents"})
            self._on_given_up(found.order.agent_id)
        elif found.attempts == 1:
            self._log.warning(Event.CERTIFICATE_FAILED, fields)
        return True

    def abandon(self) -> None:
        """The supervisor leaves: end what still runs."""
        for certificate in self._open:
            if certificate.process is not None:
                certificate.process.kill()
                certificate.process.wait()
        self._open.clear()
