"""``jobmaster agent run``: the parent of agent processes. One thread, no event loop, no driver: small, and hard to stall.

It starts the children, each as a new agent with a new id; when one dies, the proof (waitpid) becomes a death certificate at
once, so that rescue need not wait for the lease, and the living siblings are told; it starts a new agent in its place, with
a growing delay when they die in a row. What refuses every child before one has ever served (a wrong configuration, password,
schema or right) ends it with one error; later the same is a disturbance that may pass, and no reason to stop siblings that
live: it is tried again for as long as it lasts. It enforces each child's lease from outside: past its deadline a child is
killed, whatever it does. First SIGTERM or SIGINT: the children complete within the grace time; second: they stop now; after
the deadline they are killed and certified. It leaves no process behind.
"""

from __future__ import annotations

import logging
import os
import selectors
import signal
import sys
from types import FrameType

import msgspec

from jobmaster.clock import Clock, SystemClock, new_id
from jobmaster.rules.backoff import backoff_delay
from jobmaster.settings.model import ClusterSettings
from jobmaster_agents.event_log import LOGGER_NAME, Event, EventLog
from jobmaster_agents.launch.order import CertificateOrder, ControlMessage, LaunchOrder
from jobmaster_agents.launch.shared_deadline import AgentPhase, PlaceFigures
from jobmaster_agents.supervisor.child_process import STACKS_SIGNAL, Child, DeathCertificates
from jobmaster_agents.supervisor.config_reload import ConfigReload, reloaded

STOP_MARGIN_SECONDS = 5.0
"""How much longer than the grace time a graceful exit may take."""
HURRY_SECONDS = 5.0
"""How long a stop "now" may take."""
STEADY_SECONDS = 30.0
"""A child that lived this long has not died "in a row"."""
_CRASH_LOOP_DEATHS = 3
RESTART_SECONDS = 0.5
RESTART_SECONDS_MAX = 30.0
AWAY_SECONDS_MAX = 3.0
"""Longest wait after a child that ended because a server was away: the server may be back at any moment, and a start that
fails again costs half a second of one core."""
AWAY_EXIT_CODES = frozenset({69, 75})
"""A server did not answer, the lease could not be renewed."""
SERVED_SECONDS_MAX = 3.0
"""Longest wait after a child that had opened its buckets. Such a death is most often that of a job that takes its process
with it, and each one brings the cluster further: the job counts a rescue, and soon runs alone or is given up. A longer wait
would only cost the other jobs."""
REFUSED_SECONDS_MAX = 10.0
"""Longest wait after a child that was refused although others had been accepted: people mend that, and wait for it."""
CERTIFICATE_WAIT_SECONDS = 5.0
"""How long an ending supervisor waits for the last certificates."""
REFUSED_EXIT_CODES = frozenset({2, 77, 78})
"""A child that ends so before it serves would end so again until somebody mends it: wrong input, refused, wrong
configuration."""


_BEFORE_SERVING = (AgentPhase.STARTING, AgentPhase.REGISTERED)
"""A child is REGISTERED before it asks for that: the master may refuse it then, and the store its buckets."""
_REFUSED = (
    "it was refused before it served (its own error says by whom); agents of this supervisor were accepted before, "
    "so it is tried again until that is mended; its siblings go on"
)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to run."""

    settings: ClusterSettings
    agent: str
    """Key under ``settings.agents``."""
    name: str
    processes: int
    sys_path: tuple[str, ...] = ()
    child_command: tuple[str, ...] = (sys.executable, "-m", "jobmaster_agents.agent_main")
    reread_command: tuple[str, ...] = ()
    """Prints the settings of the configuration as JSON (``ConfigReload``); empty: there is none to read again."""
    certificate_command: tuple[str, ...] = (sys.executable, "-m", "jobmaster_agents.supervisor.certificate_main")


def restart_delay(deaths_in_a_row: int, exit_code: int, phase: AgentPhase = AgentPhase.STARTING) -> float:
    """Seconds before a new agent takes the place of a dead one: at once the first time, then doubling.

    Args:
        phase: how far it had come.
    """
    if deaths_in_a_row <= 1:
        return 0.0
    if exit_code in AWAY_EXIT_CODES:
        longest = AWAY_SECONDS_MAX
    elif phase in _BEFORE_SERVING:
        longest = REFUSED_SECONDS_MAX if exit_code in REFUSED_EXIT_CODES else RESTART_SECONDS_MAX
    else:
        longest = SERVED_SECONDS_MAX
    return backoff_delay(deaths_in_a_row - 1, RESTART_SECONDS, longest)


def exit_text(returncode: int) -> str:
    """How a process ended, for people."""
    if returncode >= 0:
        return f"exit code {returncode}"
    try:
        return f"signal {-returncode} ({signal.Signals(-returncode).name})"
    except ValueError:
        return f"signal {-returncode}"


class _Slot:
    """The place of one child."""

    __slots__ = ("child", "deaths", "figures", "index", "last_code", "start_at")

    def __init__(self, index: int) -> None:
        self.index = index
        self.child: Child | None = None
        self.deaths = 0
        self.start_at: float | None = 0.0
        self.last_code = 0
        self.figures = PlaceFigures()

    def count(self, more: PlaceFigures) -> None:
        """Add to the figures of this place, where its process shows them."""
        added = PlaceFigures(*map(sum, zip(self.figures, more, strict=True)))
        self.figures = added._replace(deaths_in_a_row=self.deaths)
        if self.child is not None:
            self.child.deadline.figures = self.figures


class Supervisor:
    """Runs a ``Plan`` until every child has left for good."""

    def __init__(self, plan: Plan, log: EventLog | None = None, clock: Clock | None = None) -> None:
        self._plan = plan
        self._log = (log or EventLog()).with_fields({"supervisor": os.getpid(), "name": plan.name})
        self._now = (clock or SystemClock()).boottime
        self._slots = [_Slot(index) for index in range(plan.processes)]
        self._certificates = DeathCertificates(
            plan.certificate_command, self._log, self._certified, self._not_certified
        )
        self._places: dict[bytes, _Slot] = {}
        """Agents whose certificates are open, and where they were."""
        self._rereading = ConfigReload(plan.reread_command, self._reread)
        self._stop_signals = 0
        self._kill_at: float | None = None
        self._hangups = 0
        self._given_up: int | None = None
        self._has_run = False
        """True once a child of this plan has opened its buckets: the plan is sound, and a refusal may pass."""
        self._last_certificate_at = 0.0
        self._selector = selectors.DefaultSelector()

    def run(self) -> int:
        """Supervise to the end; 0 when every child left in order."""
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(wake_read, selectors.EVENT_READ)
        before = {
            signum: signal.signal(signum, self._on_signal)
            for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
        }
        wakeup_before = signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        self._log.info(Event.SUPERVISOR_STARTED, {"processes": self._plan.processes})
        try:
            while not self._over():
                self._start_due()
                self._wait(wake_read)
                self._obey()
                self._reap()
                self._enforce_deadlines()
                self._certificates.turn(self._now())
                self._rereading.turn(self._now())
        finally:
            for slot in self._slots:
                self._bury(slot)
            self._certificates.abandon()
            self._rereading.abandon()
            signal.set_wakeup_fd(wakeup_before)
            for signum, handler in before.items():
                signal.signal(signum, handler)
            self._selector.close()
            os.close(wake_read)
            os.close(wake_write)
        code = self._exit_code()
        self._log.info(Event.SUPERVISOR_STOPPED, {"exit_code": code})
        return code

    # ------------------------------------------------------------ waiting

    def _occupied(self) -> bool:
        return any(slot.child or slot.start_at is not None for slot in self._slots)

    def _over(self) -> bool:
        if self._occupied():
            return False
        return not self._certificates.pending or self._now() > self._last_certificate_at + CERTIFICATE_WAIT_SECONDS

    def _wait(self, wake_fd: int) -> None:
        """Until a signal comes or something is due."""
        due = [self._certificates.next_at()]
        for slot in self._slots:
            if slot.start_at is not None:
                due.append(slot.start_at)
            if slot.child is not None and (end := slot.child.deadline.trusted_until):
                due.append(end if slot.child.overdue else self._stacks_at(end))
        if self._kill_at is not None:
            due.append(self._kill_at)
        if self._certificates.pending and not self._occupied():
            due.append(self._last_certificate_at + CERTIFICATE_WAIT_SECONDS + 0.01)
        # Bounded, because a child's first deadline appears in its page without a signal.
        pause = min(min(due) - self._now(), 1.0)
        self._selector.select(max(pause, 0.0))
        try:
            os.read(wake_fd, 4096)
        except BlockingIOError:
            pass

    def _stacks_at(self, end: float) -> float:
        return end - self._plan.settings.leases.lease_seconds * 0.05

    # ------------------------------------------------------------ signals

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        if signum in (signal.SIGTERM, signal.SIGINT):
            self._stop_signals += 1
        elif signum == signal.SIGHUP:
            self._hangups += 1

    def _obey(self) -> None:
        if self._hangups:
            self._hangups = 0
            if self._plan.reread_command:
                self._rereading.start(self._now())
            else:
                self._log.error(Event.RELOAD_REFUSED, {"reason": "there is no configuration to read again: restart"})
        if not self._stop_signals:
            return
        signals, self._stop_signals = self._stop_signals, 0
        for _ in range(min(signals, 2)):
            self._stop()

    def _stop(self) -> None:
        """One step down: complete, then stop now. After that only the deadline counts."""
        first = self._kill_at is None
        patience = self._plan.settings.leases.grace_seconds + STOP_MARGIN_SECONDS if first else HURRY_SECONDS
        until = self._now() + patience
        self._kill_at = until if self._kill_at is None else min(self._kill_at, until)
        self._log.info(Event.SUPERVISOR_STOPPING, {"step": "complete" if first else "now", "at_most_seconds": patience})
        for slot in self._slots:
            slot.start_at = None
            if slot.child is not None:
                slot.child.send(signal.SIGTERM)

    # ------------------------------------------------------------ children

    def _start_due(self) -> None:
        now = self._now()
        for slot in self._slots:
            if slot.child is None and slot.start_at is not None and now >= slot.start_at:
                self._start(slot, now)

    def _start(self, slot: _Slot, now: float) -> None:
        plan = self._plan
        order = LaunchOrder(
            settings=plan.settings,
            agent=plan.agent,
            name=plan.name if plan.processes == 1 else f"{plan.name}-{slot.index}",
            agent_id=new_id(),
            index=slot.index,
            sys_path=plan.sys_path,
        )
        try:
            slot.child = Child(plan.child_command, order, now)
        except OSError as error:  # out of processes or memory
            slot.deaths += 1
            slot.start_at = now + max(restart_delay(slot.deaths, slot.last_code), RESTART_SECONDS)
            self._log.error(Event.CRASH_LOOP, {"child": slot.index, "reason": str(error)})
            return
        slot.start_at = None
        slot.child.deadline.figures = slot.figures
        self._log.info(Event.CHILD_STARTED, {"child": slot.index, "agent": order.agent_id, "pid": slot.child.pid})

    def _reap(self) -> None:
        """Collect every ended process; as first process of a container these may be foreign orphans."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            code = os.waitstatus_to_exitcode(status)
            slot = next((s for s in self._slots if s.child is not None and s.child.pid == pid), None)
            if slot is not None:
                self._ended(slot, code)
            elif not self._rereading.reaped(pid, code, self._now()):
                self._certificates.reaped(pid, code, self._now())

    def _ended(self, slot: _Slot, code: int) -> None:
        child, slot.child = slot.child, None
        if child is None:
            return
        now = self._now()
        phase = child.close(code)
        lived = now - child.started_at
        if code == -signal.SIGTERM and self._kill_at is not None and phase is AgentPhase.STARTING:
            code = 0  # our own signal met it before it had begun: there is nothing to mend
        slot.last_code = code
        self._has_run = self._has_run or phase not in _BEFORE_SERVING
        fields = {"child": slot.index, "agent": child.order.agent_id, "how": exit_text(code), "lived_seconds": lived}
        if code == 0:
            self._log.info(Event.CHILD_EXITED, fields)
            return  # it has left in order, by our signal or by an operator's drain
        self._log.warning(Event.CHILD_EXITED, fields)
        if phase not in (
            AgentPhase.STARTING,
            AgentPhase.ENDED,
        ):  # before, the master knows nothing of it; after, it has left
            reason = f"supervisor saw it end: {exit_text(code)}"
            self._last_certificate_at = now
            self._places[child.order.agent_id] = slot
            self._certificates.ask(
                CertificateOrder(settings=self._plan.settings, agent_id=child.order.agent_id, reason=reason), now
            )
        refused = phase in _BEFORE_SERVING and code in REFUSED_EXIT_CODES
        if refused and not self._ran():
            self._give_up(code)
            return
        slot.deaths = slot.deaths + 1 if lived < STEADY_SECONDS else 1
        looping = slot.deaths >= _CRASH_LOOP_DEATHS
        slot.count(PlaceFigures(1, int(child.killed), int(refused), int(looping)))
        if self._kill_at is not None:
            return
        delay = restart_delay(slot.deaths, code, phase)
        slot.start_at = now + delay
        again = {"child": slot.index, "deaths_in_a_row": slot.deaths, "next_start_seconds": delay}
        if refused:
            self._log.error(Event.CHILD_REFUSED, {**again, "how": exit_text(code), "reason": _REFUSED})
        elif looping:
            self._log.error(Event.CRASH_LOOP, again)

    def _ran(self) -> bool:
        """True when a child of this plan has opened its buckets, be it one that lives."""
        living = [slot.child for slot in self._slots if slot.child is not None]
        return self._has_run or any(child.deadline.phase not in _BEFORE_SERVING for child in living)

    def _give_up(self, code: int) -> None:
        self._given_up = code
        if self._kill_at is None:
            self._stop()

    def _enforce_deadlines(self) -> None:
        now = self._now()
        for slot in self._slots:
            child = slot.child
            if child is None or child.killed:
                continue
            if self._kill_at is not None and now >= self._kill_at:
                self._kill(slot, child, "it did not leave in time")
                continue
            end = child.deadline.trusted_until
            if not end or now < self._stacks_at(end):
                child.overdue = False
            elif now >= end:
                self._kill(slot, child, "its lease has ended")
            elif not child.overdue:
                child.overdue = True
                self._log.error(
                    Event.CHILD_OVERDUE, {"child": slot.index, "agent": child.order.agent_id, "pid": child.pid}
                )
                child.send(STACKS_SIGNAL)

    def _kill(self, slot: _Slot, child: Child, why: str) -> None:
        self._log.error(
            Event.CHILD_KILLED, {"child": slot.index, "agent": child.order.agent_id, "pid": child.pid, "reason": why}
        )
        child.killed = True  # reaped when it is gone: even SIGKILL waits for a process that waits for a disk
        child.kill()

    def _bury(self, slot: _Slot) -> None:
        """On the way out after a failure of our own: leave nobody behind."""
        if slot.child is not None:
            slot.child.kill()
            _, status = os.waitpid(slot.child.pid, 0)
            slot.child.close(os.waitstatus_to_exitcode(status))
            slot.child = None

    # ------------------------------------------------------------ the configuration, read again

    def _reread(self, code: int, out: bytes, err: str) -> None:
        """A configuration that cannot be used changes nothing; of one that can, the children are told."""
        if code != 0:
            reason = " | ".join(line for line in err.splitlines() if line.strip()) or exit_text(code)
            self._log.error(Event.RELOAD_REFUSED, {"reason": reason, "in_force": "the settings as they were"})
            return
        plan = self._plan
        found = reloaded(plan.settings, msgspec.json.decode(out, type=ClusterSettings), plan.agent)
        self._plan = msgspec.structs.replace(plan, settings=found.settings)
        logging.getLogger(LOGGER_NAME).setLevel(found.settings.observability.log_level.upper())
        tell = self._log.warning if found.waiting else self._log.info
        tell(Event.RELOADED, {"changed": found.changed, "needs_a_restart": found.waiting})
        if not found.changed:
            return
        data = msgspec.json.encode(found.settings)
        for slot in self._slots:
            if slot.child is not None:
                slot.child.tell(ControlMessage.SETTINGS, data)

    def _not_certified(self, agent_id: bytes) -> None:
        self._places.pop(agent_id).count(PlaceFigures(certificates_failed=1))

    def _certified(self, agent_id: bytes) -> None:
        self._places.pop(agent_id).count(PlaceFigures(certificates=1))
        for slot in self._slots:
            if slot.child is not None:
                slot.child.tell(ControlMessage.RESCUE)

    def _exit_code(self) -> int:
        if self._given_up is not None:
            return self._given_up
        return 0 if all(slot.last_code == 0 for slot in self._slots) else 1
