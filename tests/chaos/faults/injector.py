"""Carries a schedule out: injects and heals faults, starts members again, and records the times."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from tests.chaos.checks.history import FaultRecord
from tests.chaos.faults.catalogue import KINDS, FaultKind
from tests.chaos.faults.schedule import Planned
from tests.chaos.faults.targets import InjectedFault, Targets

_PACE_SECONDS = 0.05
_LOOK_SECONDS = 1.0
_TELL_SECONDS = 15.0
_RESTART_SECONDS = 0.3


class _Open(NamedTuple):
    """A fault that is not healed yet."""

    until: float
    planned: Planned
    injected: InjectedFault
    began: float


class FaultInjector:
    """One run's faults.

    Args:
        look: called every second, to read what the servers drop later.
        log_line: called with one sentence for every event.
        kinds: the catalogue.
    """

    def __init__(
        self,
        targets: Targets,
        look: Callable[[], None],
        log_line: Callable[[str], None],
        kinds: Mapping[str, FaultKind] = KINDS,
    ) -> None:
        self.faults: list[FaultRecord] = []
        self.counts: dict[str, int] = {}
        self.missed = 0
        self._kinds = kinds
        self._targets = targets
        self._look = look
        self._log_line = log_line
        self._open: list[_Open] = []
        self._over = threading.Event()
        self._healing: list[threading.Thread] = []
        self._broken: list[Exception] = []
        self._restarts: dict[str, tuple[float, Sequence[str]]] = {}
        self._began = time.monotonic()
        targets.restart = self._restart

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self._began

    def play(self, schedule: Sequence[Planned], seconds: float, most: int | None = None) -> None:
        """Run until the time is over, or so many faults were injected; then heal everything and start every member."""
        self._began = time.monotonic()
        waiting = list(schedule)
        tell_at = _TELL_SECONDS
        looking = threading.Thread(target=self._keep_looking, daemon=True)
        looking.start()
        while self.seconds < seconds and (most is None or sum(self.counts.values()) < most):
            while waiting and waiting[0].at <= self.seconds:
                self.inject(waiting.pop(0))
            self.turn()
            if self.seconds >= tell_at:
                tell_at += _TELL_SECONDS
                self._log_line(f"{self.seconds:.0f} of {seconds:.0f} s, {sum(self.counts.values())} faults")
            time.sleep(_PACE_SECONDS)
        self._over.set()
        looking.join()
        self.finish()

    def _keep_looking(self) -> None:
        """In a thread, because the master may be frozen, and then every read takes its whole timeout."""
        while not self._over.wait(_LOOK_SECONDS):
            try:
                self._look()
            except Exception as error:  # a driver raises many kinds during a fault; the next second tries again
                self._log_line(f"{self.seconds:6.1f}  cannot look now: {error!r}")

    def inject(self, planned: Planned) -> None:
        """One fault."""
        began = time.time()
        kind = self._kinds[planned.kind]
        injected = kind.inject(self._targets, random.Random(planned.seed), planned.seconds)
        if not injected.target:
            self.missed += 1
            self._log_line(f"{self.seconds:6.1f}  {planned.kind}: no target")
            return
        self.counts[planned.kind] = self.counts.get(planned.kind, 0) + 1
        self._log_line(f"{self.seconds:6.1f}  {planned.kind}: {injected.target}")
        if injected.heal is None:
            self._note(planned, injected, began)
        else:
            self._open.append(_Open(self.seconds + planned.seconds, planned, injected, began))

    def turn(self) -> None:
        """Heal the faults whose time is over, and start the members that have ended."""
        for one in [one for one in self._open if one.until <= self.seconds]:
            self._open.remove(one)
            thread = threading.Thread(target=self._heal, args=(one,), daemon=True)  # a server takes its time to start
            thread.start()
            self._healing.append(thread)
        now = self.seconds
        for name, (at, prefix) in list(self._restarts.items()):
            if at <= now:
                del self._restarts[name]
                self._targets.fleet.again(name, prefix)
        for name, member in list(self._targets.fleet.members.items()):
            if not member.running and name not in self._restarts:
                self._restart(name, _RESTART_SECONDS, ())

    def finish(self) -> None:
        """Heal everything, and start every member."""
        while self._open:
            self._heal(self._open.pop())
        for thread in self._healing:
            thread.join()
        if self._broken:
            raise self._broken[0]
        self._targets.proxy.set("*")
        self._restarts = {name: (0.0, prefix) for name, (_, prefix) in self._restarts.items()}
        self.turn()
        self._restarts = {name: (0.0, prefix) for name, (_, prefix) in self._restarts.items()}
        self.turn()

    def _heal(self, one: _Open) -> None:
        assert one.injected.heal is not None
        try:
            one.injected.heal()
        except Exception as error:
            self._log_line(f"{self.seconds:6.1f}  {one.planned.kind} could not be healed: {error!r}")
            self._broken.append(error)
        self._note(one.planned, one.injected, one.began)

    def _note(self, planned: Planned, injected: InjectedFault, began: float) -> None:
        kind = self._kinds[planned.kind]
        self.faults.append(
            FaultRecord(
                planned.kind,
                began,
                time.time(),
                kind.uncovered,
                injected.store,
                injected.pids,
                kind.forgets_seconds,
            )
        )

    def _restart(self, name: str, seconds: float, prefix: Sequence[str]) -> None:
        self._restarts[name] = (self.seconds + seconds, prefix)
