"""Faults of agents and producers: killed, stopped, frozen, short of descriptors, with clocks that are off."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import time
from collections.abc import Callable

from tests.chaos.hit import MISSED, Hit, Stage
from tests.chaos.servers import descendants, send

_RESTART_SECONDS = (0.2, 3.0)


def _hold(stage: Stage, name: str, release: Callable[[], None]) -> Callable[[], None]:
    """Nothing else is done to it until it is released."""
    stage.busy.add(name)

    def heal() -> None:
        stage.busy.discard(name)
        release()

    return heal


def _child(stage: Stage, rng: random.Random) -> tuple[str, int] | None:
    name = stage.an_agent(rng)
    children = stage.fleet.members[name].children() if name else []
    return (name, rng.choice(children)) if name and children else None


def _wake(stage: Stage, pids: list[int]) -> None:
    now = time.time()
    stage.woken.update(dict.fromkeys(pids, now))
    send(pids, signal.SIGCONT)


# ---------------------------------------------------------------- killed


def kill_child(stage: Stage, rng: random.Random, seconds: float) -> Hit:
    found = _child(stage, rng)
    if found is None:
        return MISSED
    pids = tuple(descendants(found[1]))
    send([found[1]], signal.SIGKILL)
    return Hit(found[0], pids=pids)


def kill_supervisor(stage: Stage, rng: random.Random, seconds: float) -> Hit:
    name = stage.an_agent(rng)
    if name is None:
        return MISSED
    member = stage.fleet.members[name]
    pids = tuple(member.pids)
    member.process.kill()
    member.process.wait()
    stage.restart(name, rng.uniform(*_RESTART_SECONDS), ())
    return Hit(name, pids=pids)


def kill_agent(stage: Stage, rng: random.Random, seconds: float) -> Hit:
    name = stage.an_agent(rng)
    if name is None:
        return MISSED
    pids = tuple(stage.fleet.members[name].kill())
    stage.restart(name, rng.uniform(*_RESTART_SECONDS), ())
    return Hit(name, pids=pids)


def restart_agent(stage: Stage, rng: random.Random, seconds: float) -> Hit:
    """In order: the stage starts it again when it has left."""
    name = stage.an_agent(rng)
    if name is None:
        return MISSED
    stage.fleet.members[name].terminate()
    return Hit(name)


def kill_producer(stage: Stage, rng: random.Random, seconds: float) -> Hit:
    name = rng.choice(stage.producers)
    if not stage.fleet.members[name].running:
        return MISSED
    stage.fleet.members[name].kill()
    stage.restart(name, 0.3, ())
    return Hit(name)


# ---------------------------------------------------------------- stopped


def stop_child(stage: Stage, rng: random.Random, seconds: float) -> Hit:
    found = _child(stage, rng)
    if found is None:
        return MISSED
    pids = descendants(found[1])
    send(pids, signal.SIGSTOP)
    return Hit(f"{found[0]} for {seconds:g} s", _hold(stage, found[0], lambda: _wake(stage, pids)))


def stop_agent(stage: Stage, rng: random.Random, seconds: float) -> Hit:
    name = stage.an_agent(rng)
    if name is None:
        return MISSED
    pids = stage.fleet.members[name].pids
    send(pids, signal.SIGSTOP)
    return Hit(f"{name} for {seconds:g} s", _hold(stage, name, lambda: _wake(stage, pids)))


def freeze_agent(stage: Stage, rng: random.Random, seconds: float) -> Hit:
    name = stage.an_agent(rng)
    if name is None:
        return MISSED
    freezer = stage.freezer(str(os.getpid()))
    if (why := freezer.make()) is not None:
        raise OSError(why)
    pids = stage.fleet.members[name].pids
    freezer.add(pids)
    freezer.freeze()

    def thaw() -> None:
        stage.woken.update(dict.fromkeys(pids, time.time()))
        freezer.close()

    return Hit(f"{name} for {seconds:g} s", _hold(stage, name, thaw))


def stop_producer(stage: Stage, rng: random.Random, seconds: float) -> Hit:
    member = stage.fleet.members[rng.choice(stage.producers)]
    pids = member.pids
    send(pids, signal.SIGSTOP)
    return Hit(f"{member.name} for {seconds:g} s", lambda: send(pids, signal.SIGCONT))


# ---------------------------------------------------------------- short of something, or wrong about the time


def no_descriptors(stage: Stage, rng: random.Random, seconds: float) -> Hit:
    found = _child(stage, rng)
    if found is None:
        return MISSED
    name, pid = found
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        used = max(int(fd) for fd in os.listdir(f"/proc/{pid}/fd"))
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (min(used + 1, before[0]), before[1]))
        stage.proxy.reset(f"{name}.*")

        def heal() -> None:
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_NOFILE, before)

        return Hit(f"{name} for {seconds:g} s", _hold(stage, name, heal))
    return MISSED


def turn_clock(stage: Stage, rng: random.Random, seconds: float) -> Hit:
    """Of the agent that runs through a main program of ours; a jump there and a jump back."""
    name = stage.fleet.agents[-1]
    off = rng.choice((-3600, -600, -30, 30, 600, 3600))
    stage.fleet.clock(name).write_text(str(off))
    return Hit(f"{name} by {off} s for {seconds:g} s", lambda: stage.fleet.clock(name).unlink(missing_ok=True))


def shift_boottime(stage: Stage, rng: random.Random, seconds: float) -> Hit:
    """A killed agent comes back in a time namespace: two agents on one machine, days apart."""
    name = stage.an_agent(rng)
    if name is None:
        return MISSED
    pids = tuple(stage.fleet.members[name].kill())
    off = str(rng.randint(1, 30) * 86_400)
    stage.restart(name, rng.uniform(*_RESTART_SECONDS), ("unshare", "-T", "--boottime", off, "--monotonic", off))
    return Hit(f"{name} by {off} s", pids=pids)
