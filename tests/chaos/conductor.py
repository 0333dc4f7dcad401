"""Carries a schedule out: strikes, heals, starts again what ended, and writes down what happened when."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tests.chaos.faults import KINDS
from tests.chaos.history import Strike
from tests.chaos.hit import Hit, Stage
from tests.chaos.schedule import Planned

_PACE_SECONDS = 0.05
_LOOK_SECONDS = 1.0
_TELL_SECONDS = 15.0
_RESTART_SECONDS = 0.3


class _Open(NamedTuple):
    """A fault that is not healed yet."""

    until: float
    planned: Planned
    hit: Hit
    began: float


class Conductor:
    """One run's faults.

    Args:
        look: called every second (it reads what would be forgotten later).
        tell: is told what happens, one sentence each.
    """

    def __init__(self, stage: Stage, look: Callable[[], None], tell: Callable[[str], None]) -> None:
        self.strikes: list[Strike] = []
        self.counts: dict[str, int] = {}
        self.missed = 0
        self._stage = stage
        self._look = look
        self._tell = tell
        self._open: list[_Open] = []
        self._over = threading.Event()
        self._healing: list[threading.Thread] = []
        self._broken: list[Exception] = []
        self._restarts: dict[str, tuple[float, Sequence[str]]] = {}
        self._began = time.monotonic()
        stage.restart = self._restart

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self._began

    def play(self, schedule: Sequence[Planned], seconds: float, most: int | None = None) -> None:
        """Until the time is over, or so many faults have struck; afterwards everything is healed and everybody runs."""
        self._began = time.monotonic()
        waiting = list(schedule)
        tell_at = _TELL_SECONDS
        looking = threading.Thread(target=self._keep_looking, daemon=True)
        looking.start()
        while self.seconds < seconds and (most is None or sum(self.counts.values()) < most):
            while waiting and waiting[0].at <= self.seconds:
                self.strike(waiting.pop(0))
            self.turn()
            if self.seconds >= tell_at:
                tell_at += _TELL_SECONDS
                self._tell(f"{self.seconds:.0f} of {seconds:.0f} s, {sum(self.counts.values())} faults")
            time.sleep(_PACE_SECONDS)
        self._over.set()
        looking.join()
        self.finish()

    def _keep_looking(self) -> None:
        """Beside everything else: the master may be frozen, and then it takes its time to find that out."""
        while not self._over.wait(_LOOK_SECONDS):
            try:
                self._look()
            except Exception as error:  # a driver in the middle of a fault says many things; the next look is a new one
                self._tell(f"{self.seconds:6.1f}  cannot look now: {error!r}")

    def strike(self, planned: Planned) -> None:
        """One fault."""
        began = time.time()
        kind = KINDS[planned.kind]
        hit = kind.strike(self._stage, random.Random(planned.lot), planned.seconds)
        if not hit.whom:
            self.missed += 1
            self._tell(f"{self.seconds:6.1f}  {planned.kind}: nothing to hit")
            return
        self.counts[planned.kind] = self.counts.get(planned.kind, 0) + 1
        self._tell(f"{self.seconds:6.1f}  {planned.kind}: {hit.whom}")
        if hit.heal is None:
            self._note(planned, hit, began)
        else:
            self._open.append(_Open(self.seconds + planned.seconds, planned, hit, began))

    def turn(self) -> None:
        """Heal what is over, start again what ended."""
        for one in [one for one in self._open if one.until <= self.seconds]:
            self._open.remove(one)
            thread = threading.Thread(target=self._heal, args=(one,), daemon=True)  # a server takes its time to start
            thread.start()
            self._healing.append(thread)
        now = self.seconds
        for name, (at, prefix) in list(self._restarts.items()):
            if at <= now:
                del self._restarts[name]
                self._stage.fleet.again(name, prefix)
        for name, member in list(self._stage.fleet.members.items()):
            if not member.running and name not in self._restarts:
                self._restart(name, _RESTART_SECONDS, ())

    def finish(self) -> None:
        """Heal everything, start everybody."""
        while self._open:
            self._heal(self._open.pop())
        for thread in self._healing:
            thread.join()
        if self._broken:
            raise self._broken[0]
        self._stage.proxy.set("*")
        self._restarts = {name: (0.0, prefix) for name, (_, prefix) in self._restarts.items()}
        self.turn()
        self._restarts = {name: (0.0, prefix) for name, (_, prefix) in self._restarts.items()}
        self.turn()

    def _heal(self, one: _Open) -> None:
        assert one.hit.heal is not None
        try:
            one.hit.heal()
        except Exception as error:
            self._tell(f"{self.seconds:6.1f}  {one.planned.kind} could not be healed: {error!r}")
            self._broken.append(error)
        self._note(one.planned, one.hit, one.began)

    def _note(self, planned: Planned, hit: Hit, began: float) -> None:
        uncovered = KINDS[planned.kind].uncovered
        self.strikes.append(Strike(planned.kind, began, time.time(), uncovered, hit.store, hit.pids))

    def _restart(self, name: str, seconds: float, prefix: Sequence[str]) -> None:
        self._restarts[name] = (self.seconds + seconds, prefix)
