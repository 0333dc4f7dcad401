"""A port with a fault in it: a transparent stand-in for the master or a store that kills, fails, or loses a reply.

Every point at which a process may die lies before or after a call of a port. So no hook is needed inside the program: the
test's own main programs (`faulty_child`, `faulty_producer`) put these between it and its stores.

Faults are files in a directory that the environment names, so that a test can give them to a running process. A fault is
injected once, by the first process that makes the call, which then renames the file; only ``HOLD`` lasts as long as its file
exists.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
from collections.abc import Callable, Coroutine, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from jobmaster.model.errors import OutcomeUnknown, Unavailable
from tests.support.master_parts import PARTS

VARIABLE = "JOBMASTER_TEST_FAULTS"
"""Environment variable that names the directory of faults."""
_ORDER, _DONE = ".order", ".done"
_LOOK_SECONDS = 0.01


class Action(StrEnum):
    """What happens at the call."""

    KILL_BEFORE = "kill_before"
    """SIGKILL to this process, nothing is sent."""
    KILL_AFTER = "kill_after"
    """The call is made; SIGKILL before the caller sees the answer."""
    FAIL = "fail"
    """``Unavailable``, nothing is sent."""
    LOSE_REPLY = "lose_reply"
    """The call is made; ``OutcomeUnknown`` instead of the answer."""
    HOLD = "hold"
    """No such call is sent while the file exists."""
    HOLD_REPLY = "hold_reply"
    """The calls are made; no answer is returned while the file exists."""


class FaultSpec(NamedTuple):
    """One fault.

    ``match`` must be part of the arguments as text (and of the answer, for what happens after it).
    """

    call: str
    """``master.<method>`` or ``store.<method>``."""
    action: Action
    occurrence: int = 1
    """Number of the matching call of one process, counted since the file exists; the first is 1."""
    match: str = ""

    @property
    def text(self) -> str:
        return "\n".join((self.call, self.action.value, str(self.occurrence), self.match))

    @classmethod
    def read(cls, text: str) -> FaultSpec:
        call, action, occurrence, match = text.split("\n")
        return cls(call, Action(action), int(occurrence), match)


class FaultDirectory:
    """A directory of faults: the test's side, and the side of the process."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._known: dict[str, FaultSpec] = {}
        self._counts: dict[str, int] = {}

    # ------------------------------------------------------------ the test's side

    def give(self, name: str, fault: FaultSpec) -> None:
        """Write a fault, atomically."""
        self.directory.mkdir(exist_ok=True)
        (self.directory / f"{name}{_DONE}").unlink(missing_ok=True)
        draft = self.directory / f"{name}.draft"
        draft.write_text(fault.text)
        draft.rename(self.directory / f"{name}{_ORDER}")

    def done(self, name: str) -> bool:
        return (self.directory / f"{name}{_DONE}").exists()

    def waiting(self) -> list[str]:
        """Faults that are not injected yet."""
        return sorted(path.stem for path in self.directory.glob(f"*{_ORDER}"))

    def withdraw(self, name: str) -> None:
        """Remove a fault: a ``HOLD`` is over."""
        (self.directory / f"{name}{_ORDER}").unlink(missing_ok=True)

    # ------------------------------------------------------------ the process's side

    def present(self, call: str) -> dict[str, FaultSpec]:
        """The present faults of a call, by name: a ``HOLD`` called ``a`` is over before a kill called ``b``."""
        names = {name[: -len(_ORDER)] for name in os.listdir(self.directory) if name.endswith(_ORDER)}
        for name in names - self._known.keys():
            try:
                self._known[name] = FaultSpec.read((self.directory / f"{name}{_ORDER}").read_text())
            except FileNotFoundError:
                continue
        for name in self._known.keys() - names:
            del self._known[name]
            self._counts.pop(name, None)
        return {name: self._known[name] for name in sorted(self._known) if self._known[name].call == call}

    def counts(self, name: str, fault: FaultSpec) -> bool:
        """Count a matching call; True when it is the one that is meant."""
        count = self._counts[name] = self._counts.get(name, 0) + 1
        return count == fault.occurrence

    def claim(self, name: str) -> bool:
        """True for the one process that injects it."""
        try:
            (self.directory / f"{name}{_ORDER}").rename(self.directory / f"{name}{_DONE}")
        except FileNotFoundError:
            return False
        return True

    async def released(self, name: str) -> None:
        """Wait until the file is gone."""
        while (self.directory / f"{name}{_ORDER}").exists():  # noqa: ASYNC110 - another process takes it away
            await asyncio.sleep(_LOOK_SECONDS)


_BEFORE = (Action.KILL_BEFORE, Action.FAIL, Action.HOLD)


class FaultyPort:
    """Every coroutine method of ``port`` and of its parts, with the faults of the directory."""

    def __init__(self, port: object, name: str, faults: FaultDirectory) -> None:
        self._port = port
        self._name = name
        self._faults = faults

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._port, name)
        if self._name == "master" and name in PARTS and not callable(value):  # a part and a method may be called alike
            return FaultyPort(value, self._name, self._faults)
        if not inspect.iscoroutinefunction(value):
            return value

        async def call(*arguments: Any, **words: Any) -> Any:
            return await self._call(f"{self._name}.{name}", value, arguments, words)

        return call

    async def _call(
        self,
        call: str,
        method: Callable[..., Coroutine[Any, Any, Any]],
        arguments: tuple[Any, ...],
        words: Mapping[str, Any],
    ) -> Any:
        present = self._faults.present(call)
        if not present:
            return await method(*arguments, **words)
        said = f"{arguments} {words}"
        before = [
            (name, fault)
            for name, fault in present.items()
            if fault.action in _BEFORE and fault.match in said and self._meant(name, fault)
        ]
        # Every order counts every call, also one that another order strikes, and when it is sent: answers may take long.
        after = {
            name: fault
            for name, fault in present.items()
            if fault.action not in _BEFORE and (fault.match not in said or self._meant(name, fault))
        }
        for name, fault in before:
            await self._strike(call, name, fault)
        answer = await method(*arguments, **words)
        for name, fault in after.items():
            if fault.match in said or (fault.match in repr(answer) and self._meant(name, fault)):
                await self._strike(call, name, fault)
        return answer

    def _meant(self, name: str, fault: FaultSpec) -> bool:
        return fault.action in (Action.HOLD, Action.HOLD_REPLY) or self._faults.counts(name, fault)

    async def _strike(self, call: str, name: str, fault: FaultSpec) -> None:
        if fault.action in (Action.HOLD, Action.HOLD_REPLY):
            await self._faults.released(name)
            return
        if not self._faults.claim(name):
            return
        match fault.action:
            case Action.KILL_BEFORE | Action.KILL_AFTER:
                os.kill(os.getpid(), signal.SIGKILL)
            case Action.FAIL:
                raise Unavailable(f"{call} was not sent, as the test ordered")
            case Action.LOSE_REPLY:
                raise OutcomeUnknown(f"the answer of {call} was lost, as the test ordered")
