"""``jobmaster agent run``: the parent of agent processes. One thread, no event loop, no driver: small, and hard to stall.

* It starts the children, each as a new agent with a new id. When a child dies, the proof (waitpid) becomes a death
  certificate at once, so that the rescue need not wait for the lease, and the living siblings get a message. A new agent
  takes the slot, with a growing delay when several die in a row.
* A refusal of every child before one has ever served (a wrong configuration, password, schema or right) ends the supervisor
  with one error. Later the same refusal may be temporary and is no reason to stop siblings that run: the start is repeated.
* It enforces each child's lease from outside: a child past its deadline is killed.
* It tells the service manager when it is ready, reloads and stops, and answers its watchdog (``ServiceManager``).
* First SIGTERM or SIGINT: the children complete within the grace time. Second: they stop now. After the deadline they are
  killed and certified. The supervisor leaves no process behind.
"""

from __future__ import annotations

import logging
import os
import selectors
import signal
import sys
from types import FrameType

import msgspec

from jobmaster.clock import Clock, SystemClock, monotonic_us, new_id
from jobmaster.settings.model import ClusterSettings
from jobmaster_agents.event_log import LOGGER_NAME, Event, EventLog
from jobmaster_agents.launch.launch_order import CertificateRequest, ControlMessage, LaunchOrder
from jobmaster_agents.launch.shared_deadline import AgentPhase, ChildCounters
from jobmaster_agents.supervisor.child_process import STACKS_SIGNAL, ChildProcess
from jobmaster_agents.supervisor.config_reload import ConfigReload, apply_reload
from jobmaster_agents.supervisor.death_certificates import DeathCertificates
from jobmaster_agents.supervisor.restart_policy import (
    BEFORE_SERVING,
    RESTART_SECONDS,
    deaths_in_a_row,
    is_crash_loop,
    is_refusal,
    restart_delay,
)
from jobmaster_agents.supervisor.service_manager import ServiceManager

STOP_MARGIN_SECONDS = 5.0
"""Time of a graceful exit beyond the grace time."""
HURRY_SECONDS = 5.0
"""Time limit of a stop "now"."""
CERTIFICATE_WAIT_SECONDS = 5.0
"""Time for which an ending supervisor waits for the last certificates."""
_REFUSED = (
    "it was refused before it served (its own error says by whom); agents of this supervisor were accepted before, "
    "so it is tried again until that is mended; its siblings go on"
)


class SupervisorPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a supervisor runs."""

    settings: ClusterSettings
    agent: str
    """Key under ``settings.agents``."""
    name: str
    processes: int
    sys_path: tuple[str, ...] = ()
    child_command: tuple[str, ...] = (sys.executable, "-m", "jobmaster_agents.agent_main")
    reload_command: tuple[str, ...] = ()
    """Prints the settings of the configuration as JSON (``ConfigReload``); empty: a reload is not possible."""
    certificate_command: tuple[str, ...] = (sys.executable, "-m", "jobmaster_agents.supervisor.certificate_main")


def exit_text(returncode: int) -> str:
    """How a process ended, as text."""
    if returncode >= 0:
        return f"exit code {returncode}"
    try:
        return f"signal {-returncode} ({signal.Signals(-returncode).name})"
    except ValueError:
        return f"signal {-returncode}"


class _ChildSlot:
    """One of the supervisor's places for a child: the child that runs in it, and the history of those before."""

    __slots__ = ("child", "counters", "deaths", "index", "last_code", "start_at")

    def __init__(self, index: int) -> None:
        self.index = index
        self.child: ChildProcess | None = None
        self.deaths = 0
        self.start_at: float | None = 0.0
        self.last_code = 0
        self.counters = ChildCounters()

    def count(self, more: ChildCounters) -> None:
        """Add to the counters of this slot; its child shows them as metrics."""
        added = ChildCounters(*map(sum, zip(self.counters, more, strict=True)))
        self.counters = added._replace(deaths_in_a_row=self.deaths)
        if self.child is not None:
            self.child.deadline.counters = self.counters


class Supervisor:
    """Runs a ``SupervisorPlan`` until every child has ended for good."""

    def __init__(
        self,
        plan: SupervisorPlan,
        log: EventLog | None = None,
        clock: Clock | None = None,
        service_manager: ServiceManager | None = None,
    ) -> None:
        self._plan = plan
        self._log = (log or EventLog()).with_fields({"supervisor": os.getpid(), "name": plan.name})
        self._now = (clock or SystemClock()).boottime
        self._service_manager = service_manager or ServiceManager()
        self._slots = [_ChildSlot(index) for index in range(plan.processes)]
        self._certificates = DeathCertificates(
            plan.certificate_command, self._log, self._on_certified, self._on_certificate_failed
        )
        self._slots_by_agent: dict[bytes, _ChildSlot] = {}
        """Slots of the dead agents whose certificates are pending."""
        self._config_reload = ConfigReload(plan.reload_command, self._on_config_read)
        self._stop_signals = 0
        self._kill_at: float | None = None
        self._reload_signals = 0
        self._refused_with: int | None = None
        self._served_once = False
        """True after a child of this plan has opened its buckets: the plan is valid, and a refusal may be temporary."""
        self._last_certificate_at = 0.0
        self._selector = selectors.DefaultSelector()

    def run(self) -> int:
        """Supervise to the end; 0 when every child exited gracefully."""
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(wake_read, selectors.EVENT_READ)
        before = {
            signum: signal.signal(signum, self._on_signal)
            for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
        }
        wakeup_before = signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        self._log.info(Event.SUPERVISOR_STARTED, {"processes": self._plan.processes})
        try:
            while not self._finished():
                self._start_due()
                self._wait(wake_read)
                self._handle_signals()
                self._reap()
                self._enforce_deadlines()
                self._certificates.turn(self._now())
                self._config_reload.turn(self._now())
                self._notify()
        finally:
            for slot in self._slots:
                self._kill_and_reap(slot)
            self._certificates.abandon()
            self._config_reload.abandon()
            signal.set_wakeup_fd(wakeup_before)
            for signum, handler in before.items():
                signal.signal(signum, handler)
            self._selector.close()
            os.close(wake_read)
            os.close(wake_write)
            self._service_manager.close()
        code = self._exit_code()
        self._log.info(Event.SUPERVISOR_STOPPED, {"exit_code": code})
        return code

    # ------------------------------------------------------------ waiting

    def _occupied(self) -> bool:
        return any(slot.child or slot.start_at is not None for slot in self._slots)

    def _finished(self) -> bool:
        if self._occupied():
            return False
        return not self._certificates.pending or self._now() > self._last_certificate_at + CERTIFICATE_WAIT_SECONDS

    def _wait(self, wake_fd: int) -> None:
        """Wait until a signal comes or something is due."""
        due = [self._certificates.next_at(), self._service_manager.next_at()]
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
            self._reload_signals += 1

    def _handle_signals(self) -> None:
        if self._reload_signals:
            self._reload_signals = 0
            self._service_manager.reloading(monotonic_us())
            if self._plan.reload_command:
                self._config_reload.start(self._now())
            else:
                self._refuse_reload("there is no configuration to read again: restart")
        if not self._stop_signals:
            return
        signals, self._stop_signals = self._stop_signals, 0
        for _ in range(min(signals, 2)):
            self._stop()

    def _stop(self) -> None:
        """First call: have the children complete. Second call: have them stop now. Later only the deadline counts."""
        first = self._kill_at is None
        patience = self._plan.settings.leases.grace_seconds + STOP_MARGIN_SECONDS if first else HURRY_SECONDS
        until = self._now() + patience
        self._kill_at = until if self._kill_at is None else min(self._kill_at, until)
        if first:
            self._service_manager.stopping()
        self._log.info(Event.SUPERVISOR_STOPPING, {"step": "complete" if first else "now", "at_most_seconds": patience})
        for slot in self._slots:
            slot.start_at = None
            if slot.child is not None:
                slot.child.send_signal(signal.SIGTERM)

    # ------------------------------------------------------------ children

    def _start_due(self) -> None:
        now = self._now()
        for slot in self._slots:
            if slot.child is None and slot.start_at is not None and now >= slot.start_at:
                self._start(slot, now)

    def _start(self, slot: _ChildSlot, now: float) -> None:
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
            slot.child = ChildProcess(plan.child_command, order, now)
        except OSError as error:  # out of processes or memory
            slot.deaths += 1
            slot.start_at = now + max(restart_delay(slot.deaths, slot.last_code), RESTART_SECONDS)
            self._log.error(Event.CRASH_LOOP, {"child": slot.index, "reason": str(error)})
            return
        slot.start_at = None
        slot.child.deadline.counters = slot.counters
        self._log.info(Event.CHILD_STARTED, {"child": slot.index, "agent": order.agent_id, "pid": slot.child.pid})

    def _reap(self) -> None:
        """Reap every ended process. As the first process of a container the supervisor also gets orphans of others."""
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
                self._on_child_exit(slot, code)
            elif not self._config_reload.reaped(pid, code, self._now()):
                self._certificates.reaped(pid, code, self._now())

    def _on_child_exit(self, slot: _ChildSlot, code: int) -> None:
        child, slot.child = slot.child, None
        if child is None:
            return
        now = self._now()
        phase = child.close(code)
        lived = now - child.started_at
        if code == -signal.SIGTERM and self._kill_at is not None and phase is AgentPhase.STARTING:
            code = 0  # killed by the supervisor's own signal before its start was complete: no failure
        slot.last_code = code
        self._served_once = self._served_once or phase not in BEFORE_SERVING
        fields = {"child": slot.index, "agent": child.order.agent_id, "how": exit_text(code), "lived_seconds": lived}
        if code == 0:
            self._log.info(Event.CHILD_EXITED, fields)
            return  # a graceful exit, after a signal or an operator's drain
        self._log.warning(Event.CHILD_EXITED, fields)
        if phase not in (AgentPhase.STARTING, AgentPhase.ENDED):  # otherwise there is no row, or the agent has retired
            reason = f"supervisor saw it end: {exit_text(code)}"
            self._last_certificate_at = now
            self._slots_by_agent[child.order.agent_id] = slot
            self._certificates.request(
                CertificateRequest(settings=self._plan.settings, agent_id=child.order.agent_id, reason=reason), now
            )
        refused = is_refusal(code, phase)
        if refused and not self._has_served():
            self._give_up(code)
            return
        slot.deaths = deaths_in_a_row(slot.deaths, lived)
        looping = is_crash_loop(slot.deaths)
        slot.count(ChildCounters(1, int(child.killed), int(refused), int(looping)))
        if self._kill_at is not None:
            return
        delay = restart_delay(slot.deaths, code, phase)
        slot.start_at = now + delay
        again = {"child": slot.index, "deaths_in_a_row": slot.deaths, "next_start_seconds": delay}
        if refused:
            self._log.error(Event.CHILD_REFUSED, {**again, "how": exit_text(code), "reason": _REFUSED})
        elif looping:
            self._log.error(Event.CRASH_LOOP, again)

    def _has_served(self) -> bool:
        """True when a child of this plan, dead or alive, has opened its buckets."""
        living = [slot.child for slot in self._slots if slot.child is not None]
        return self._served_once or any(child.deadline.phase not in BEFORE_SERVING for child in living)

    def _give_up(self, code: int) -> None:
        self._refused_with = code
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
                child.send_signal(STACKS_SIGNAL)

    def _kill(self, slot: _ChildSlot, child: ChildProcess, why: str) -> None:
        self._log.error(
            Event.CHILD_KILLED, {"child": slot.index, "agent": child.order.agent_id, "pid": child.pid, "reason": why}
        )
        child.killed = True  # reaped later: even SIGKILL waits while the process waits for a disk
        child.kill()

    def _kill_and_reap(self, slot: _ChildSlot) -> None:
        """Kill and reap a child when the supervisor itself fails, so that no process is left behind."""
        if slot.child is not None:
            slot.child.kill()
            _, status = os.waitpid(slot.child.pid, 0)
            slot.child.close(os.waitstatus_to_exitcode(status))
            slot.child = None

    def _notify(self) -> None:
        children = [slot.child for slot in self._slots if slot.child is not None]
        serving = sum(child.deadline.phase is AgentPhase.SERVING for child in children)
        self._service_manager.serving(serving, self._plan.processes)
        self._service_manager.turn(self._now(), progress=not any(child.overdue or child.killed for child in children))

    # ------------------------------------------------------------ configuration reload, certificates

    def _on_config_read(self, code: int, out: bytes, err: str) -> None:
        """Apply a valid configuration and send it to the children; an invalid one changes nothing."""
        if code != 0:
            reason = " | ".join(line for line in err.splitlines() if line.strip()) or exit_text(code)
            self._refuse_reload(reason)
            return
        plan = self._plan
        try:
            settings = msgspec.json.decode(out, type=ClusterSettings)
        except msgspec.DecodeError as error:  # another version was installed under this supervisor
            reason = f"the installed program has other settings than this supervisor, restart the supervisor: {error}"
            self._refuse_reload(reason)
            return
        found = apply_reload(plan.settings, settings, plan.agent)
        self._plan = msgspec.structs.replace(plan, settings=found.settings)
        logging.getLogger(LOGGER_NAME).setLevel(found.settings.observability.log_level.upper())
        log_line = self._log.warning if found.waiting else self._log.info
        log_line(Event.RELOADED, {"changed": found.changed, "needs_a_restart": found.waiting})
        self._service_manager.reloaded("The configuration was read again")
        if not found.changed:
            return
        data = msgspec.json.encode(found.settings)
        for slot in self._slots:
            if slot.child is not None:
                slot.child.send_message(ControlMessage.SETTINGS, data)

    def _refuse_reload(self, reason: str) -> None:
        self._log.error(Event.RELOAD_REFUSED, {"reason": reason, "in_force": "the settings as they were"})
        self._service_manager.reloaded(f"The configuration could not be used: {reason}")

    def _on_certificate_failed(self, agent_id: bytes) -> None:
        self._slots_by_agent.pop(agent_id).count(ChildCounters(certificates_failed=1))

    def _on_certified(self, agent_id: bytes) -> None:
        self._slots_by_agent.pop(agent_id).count(ChildCounters(certificates=1))
        for slot in self._slots:
            if slot.child is not None:
                slot.child.send_message(ControlMessage.RESCUE)

    def _exit_code(self) -> int:
        if self._refused_with is not None:
            return self._refused_with
        return 0 if all(slot.last_code == 0 for slot in self._slots) else 1
