"""Circuit breakers of a cluster in memory: what runs counts, and the jobs of a breaker that is not closed wait."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from jobmaster.handlers.flow.breaker import Breaker
from jobmaster.model.flow.breaker import BreakerState, BreakerView
from jobmaster.model.job import ErrorInfo, JobState
from jobmaster.model.pause import Pause, PauseKind

if TYPE_CHECKING:
    from jobmaster.testing.memory.rows import MemoryRows

_ERROR = msgspec.json.Decoder(ErrorInfo)
_SECOND_US = 1_000_000


class MemoryBreakers:
    """``jobmaster.ports.ClientBreakers`` over the handlers of a cluster in memory.

    Jobs run one at a time, so a half-open breaker lets one trial after another through.
    """

    def __init__(self, rows: MemoryRows) -> None:
        self._rows = rows
        self._states: dict[str, BreakerView] = {}
        """Breakers that were changed, without their handlers and counts."""
        self._runs: dict[str, list[tuple[int, bool]]] = {}
        """Time and failure of each run since the breaker has got its state."""
        self._reopens_us: dict[str, int] = {}
        """Half-open breaker -> the time at which it became so; a trial that fails opens it again from then on."""

    # ------------------------------------------------------------ clients

    async def list(self, name: str | None = None) -> Sequence[BreakerView]:
        """The breakers that handlers declare, by name."""
        with self._rows.lock:
            self._advance(self._rows.clock.wall_us())
            return [self._view(each) for each in sorted(self._declared()) if name in (None, each)]

    async def set_state(
        self,
        name: str,
        state: BreakerState,
        open_seconds: float | None,
        actor: str,
        reason: str,
        epoch: int | None = None,
    ) -> int | None:
        """Open or close a breaker."""
        with self._rows.lock:
            self._advance(now_us := self._rows.clock.wall_us())
            if name not in self._declared() or epoch not in (None, self._view(name).epoch):
                return None
            until_us = None if open_seconds is None else now_us + int(open_seconds * _SECOND_US)
            return self._change(name, state, until_us, actor, reason)

    # ------------------------------------------------------------ what runs

    def waiting(self, moment_us: int) -> frozenset[str]:
        """Handlers of which no job starts at this moment. A half-open breaker holds them while its trial runs elsewhere."""
        self._advance(moment_us)
        return frozenset(
            handler
            for name, state in self._states.items()
            if state.state is not BreakerState.CLOSED
            for handler in self._declared().get(name, ())
            if state.state is BreakerState.OPEN or self._trial_runs(name)
        )

    def pauses(self) -> Sequence[Pause]:
        """The lines of breakers that hold jobs among the pauses in force."""
        self._advance(self._rows.clock.wall_us())
        return [
            Pause(
                kind=PauseKind.BREAKER, value=name, actor=state.actor, reason=state.reason, since_us=state.changed_us,
                until_us=state.until_us, handlers=tuple(sorted(self._declared()[name])),
            )
            for name, state in sorted(self._states.items())
            if state.state is not BreakerState.CLOSED and name in self._declared()
        ]  # fmt: skip

    def ended(self, breaker: Breaker, error: bytes | None) -> None:
        """Count a run: it has succeeded, or failed with this error (JSON of ``ErrorInfo``)."""
        failed = False
        if error is not None:
            info = _ERROR.decode(error)
            counts = breaker.is_failure(info.reason, info.type)
            if counts is None:
                return
            failed = counts
        with self._rows.lock:
            now_us, name = self._rows.clock.wall_us(), breaker.rule.name
            self._runs.setdefault(name, []).append((now_us, failed))
            view = self._view(name)
            if view.state is BreakerState.CLOSED:
                if failed and view.calls >= view.min_calls and view.failed >= view.failures * view.calls:
                    self._open_again(view, now_us, f"{view.failed} of {view.calls} runs have failed")
            elif view.state is BreakerState.HALF_OPEN:
                self._tried(view, failed)

    def _tried(self, view: BreakerView, failed: bool) -> None:
        since_us = self._reopens_us.get(view.name, view.changed_us)
        if failed:
            self._open_again(view, since_us, "1 of 1 trials have failed")
        elif view.succeeded >= view.half_open or not self._has_due_jobs(view, since_us):
            self._change(view.name, BreakerState.CLOSED, None, "breaker", f"{view.succeeded} trials have succeeded")

    def _open_again(self, view: BreakerView, since_us: int, reason: str) -> None:
        until_us = since_us + int(view.open_seconds * _SECOND_US)
        self._change(view.name, BreakerState.OPEN, until_us, "breaker", reason)

    def _has_due_jobs(self, view: BreakerView, moment_us: int) -> bool:
        due_us = max(moment_us, self._rows.clock.wall_us())
        return any(
            job.waits and job.due_us <= due_us and job.entry.handler in view.handlers
            for job in self._rows.jobs.values()
        )

    def _trial_runs(self, name: str) -> bool:
        guarded = self._declared().get(name, ())
        return any(
            job.state is JobState.PROCESSING and job.entry.handler in guarded for job in self._rows.jobs.values()
        )

    # ------------------------------------------------------------ states

    def _advance(self, moment_us: int) -> None:
        """Open breakers whose time is over at this moment become half-open."""
        for name, state in [*self._states.items()]:
            until_us = state.until_us
            if state.state is BreakerState.OPEN and until_us is not None and until_us <= moment_us:
                self._change(name, BreakerState.HALF_OPEN, None, "breaker", "it was open for its time")
                self._reopens_us[name] = until_us

    def _change(self, name: str, state: BreakerState, until_us: int | None, actor: str, reason: str) -> int:
        before, now_us = self._view(name), self._rows.clock.wall_us()
        self._states[name] = msgspec.structs.replace(
            before,
            state=state,
            changed_us=now_us,
            until_us=until_us,
            actor=actor,
            reason=reason,
            epoch=before.epoch + 1,
        )
        self._runs.pop(name, None)
        self._reopens_us.pop(name, None)
        self._rows.pause_version += 1
        return self._rows.pause_version

    def _view(self, name: str) -> BreakerView:
        declared = self._declared()
        rule = next(iter(declared[name].values())).rule
        known = self._states.get(name)
        if known is None:
            known = BreakerView(
                **rule._asdict(), state=BreakerState.CLOSED, handlers=(), calls=0, failed=0, changed_us=0
            )
        runs = self._runs.get(name, [])
        if known.state is BreakerState.CLOSED:
            since_us = self._rows.clock.wall_us() - int(rule.window_seconds * _SECOND_US)
            runs = self._runs[name] = [each for each in runs if each[0] > since_us]
        failed = sum(failed for _, failed in runs)
        return msgspec.structs.replace(
            known,
            handlers=tuple(sorted(declared[name])),
            calls=len(runs),
            failed=failed,
            succeeded=len(runs) - failed if known.state is BreakerState.HALF_OPEN else 0,
        )

    def _declared(self) -> dict[str, dict[str, Breaker]]:
        """Resource -> its handlers, with their breakers."""
        found: dict[str, dict[str, Breaker]] = {}
        for handler in self._rows.handlers or ():
            if (breaker := handler.options.breaker) is not None:
                found.setdefault(breaker.rule.name, {})[handler.name] = breaker
        return found
