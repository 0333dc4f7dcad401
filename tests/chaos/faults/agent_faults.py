"""Faults of agents and producers: killed, stopped, frozen, short of descriptors, with clocks that are off."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import time
from collections.abc import Callable

from benchmarks.support.measured_cluster import descendants
from tests.chaos.cluster.servers import send
from tests.chaos.faults.targets import MISSED, InjectedFault, Targets

_RESTART_SECONDS = (0.2, 3.0)


def _hold(targets: Targets, name: str, release: Callable[[], None]) -> Callable[[], None]:
    """Nothing else is done to it until it is released."""
    targets.busy.add(name)

    def heal() -> None:
        targets.busy.discard(name)
        release()

    return heal


def _child(targets: Targets, rng: random.Random) -> tuple[str, int] | None:
    name = targets.an_agent(rng)
    children = targets.fleet.members[name].children() if name else []
    return (name, rng.choice(children)) if name and children else None


def _wake(targets: Targets, pids: list[int]) -> None:
    now = time.time()
    targets.woken.update(dict.fromkeys(pids, now))
    send(pids, signal.SIGCONT)


# ---------------------------------------------------------------- killed


def kill_child(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    found = _child(targets, rng)
    if found is None:
        return MISSED
    pids = tuple(descendants(found[1]))
    send([found[1]], signal.SIGKILL)
    return InjectedFault(found[0], pids=pids)


def kill_supervisor(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    name = targets.an_agent(rng)
    if name is None:
        return MISSED
    member = targets.fleet.members[name]
    pids = tuple(member.pids)
    member.process.kill()
    member.process.wait()
    targets.restart(name, rng.uniform(*_RESTART_SECONDS), ())
    return InjectedFault(name, pids=pids)


def kill_agent(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    name = targets.an_agent(rng)
    if name is None:
        return MISSED
    pids = tuple(targets.fleet.members[name].kill())
    targets.restart(name, rng.uniform(*_RESTART_SECONDS), ())
    return InjectedFault(name, pids=pids)


def restart_agent(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    """In order: the stage starts it again when it has left."""
    name = targets.an_agent(rng)
    if name is None:
        return MISSED
    targets.fleet.members[name].terminate()
    return InjectedFault(name)


def kill_producer(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    name = rng.choice(targets.producers)
    if not targets.fleet.members[name].running:
        return MISSED
    targets.fleet.members[name].kill()
    targets.restart(name, 0.3, ())
    return InjectedFault(name)


# ---------------------------------------------------------------- stopped


def stop_child(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    found = _child(targets, rng)
    if found is None:
        return MISSED
    pids = descendants(found[1])
    send(pids, signal.SIGSTOP)
    return InjectedFault(f"{found[0]} for {seconds:g} s", _hold(targets, found[0], lambda: _wake(targets, pids)))


def stop_agent(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    name = targets.an_agent(rng)
    if name is None:
        return MISSED
    pids = targets.fleet.members[name].pids
    send(pids, signal.SIGSTOP)
    return InjectedFault(f"{name} for {seconds:g} s", _hold(targets, name, lambda: _wake(targets, pids)))


def freeze_agent(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    name = targets.an_agent(rng)
    if name is None:
        return MISSED
    freezer = targets.freezer(str(os.getpid()))
    if (why := freezer.make()) is not None:
        raise OSError(why)
    pids = targets.fleet.members[name].pids
    freezer.add(pids)
    freezer.freeze()

    def unfreeze() -> None:
        targets.woken.update(dict.fromkeys(pids, time.time()))
        freezer.close()

    return InjectedFault(f"{name} for {seconds:g} s", _hold(targets, name, unfreeze))


def stop_producer(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    member = targets.fleet.members[rng.choice(targets.producers)]
    pids = member.pids
    send(pids, signal.SIGSTOP)
    return InjectedFault(f"{member.name} for {seconds:g} s", lambda: send(pids, signal.SIGCONT))


# ---------------------------------------------------------------- short of something, or wrong about the time


def no_descriptors(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    found = _child(targets, rng)
    if found is None:
        return MISSED
    name, pid = found
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        used = max(int(fd) for fd in os.listdir(f"/proc/{pid}/fd"))
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (min(used + 1, before[0]), before[1]))
        targets.proxy.reset(f"{name}.*")

        def heal() -> None:
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_NOFILE, before)

        return InjectedFault(f"{name} for {seconds:g} s", _hold(targets, name, heal))
    return MISSED


def turn_clock(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    """Of the agent that runs through a main program of ours; a jump there and a jump back."""
    name = targets.fleet.agents[-1]
    off = rng.choice((-3600, -600, -30, 30, 600, 3600))
    targets.fleet.clock(name).write_text(str(off))
    return InjectedFault(
        f"{name} by {off} s for {seconds:g} s", lambda: targets.fleet.clock(name).unlink(missing_ok=True)
    )


def shift_boottime(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    """A killed agent comes back in a time namespace: two agents on one machine, days apart."""
    name = targets.an_agent(rng)
    if name is None:
        return MISSED
    pids = tuple(targets.fleet.members[name].kill())
    off = str(rng.randint(1, 30) * 86_400)
    targets.restart(name, rng.uniform(*_RESTART_SECONDS), ("unshare", "-T", "--boottime", off, "--monotonic", off))
    return InjectedFault(f"{name} by {off} s", pids=pids)
