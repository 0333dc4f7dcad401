"""Faults of PostgreSQL, of the stores, and of the disks below them."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import Callable

import asyncpg

from tests.chaos.cluster.replicated_store import ClusterStore, WatchedStore
from tests.chaos.faults.targets import MISSED, InjectedFault, Targets

_DOWN_SECONDS = (0.0, 1.5)
_HOGS_MAX = 400


def _claimed(targets: Targets, name: str) -> bool:
    """True when nothing else is being done to the server; it is ours from now on."""
    if name in targets.busy:
        return False
    targets.busy.add(name)
    return True


def _released(targets: Targets, name: str, heal: Callable[[], None]) -> Callable[[], None]:
    def release() -> None:
        try:
            heal()
        finally:
            targets.busy.discard(name)

    return release


def _a_store(targets: Targets, rng: random.Random) -> str | None:
    free = [name for name in targets.servers.single_stores if name not in targets.busy]
    name = rng.choice(free) if free else None
    return name if name is not None and _claimed(targets, name) else None


# ---------------------------------------------------------------- the master


def _master(targets: Targets, down: Callable[[], None], seconds: float, said: str) -> InjectedFault:
    """Down, and up again after so many seconds."""
    if not _claimed(targets, "master"):
        return MISSED
    down()
    role = targets.servers.roles["master"]
    return InjectedFault(f"{said}, {seconds:.1f} s", _released(targets, "master", role.up))


def restart_master(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    role = targets.servers.roles["master"]
    return _master(targets, role.quit_immediately, 0.0, "immediate shutdown")


def kill_master(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    return _master(targets, targets.servers.roles["master"].kill, 0.0, "SIGKILL")


def stop_master(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    return _master(targets, targets.servers.roles["master"].quit_immediately, seconds, "down")


def freeze_master(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    if not _claimed(targets, "master"):
        return MISSED
    role = targets.servers.roles["master"]
    role.freeze()
    return InjectedFault(f"{len(role.frozen)} processes for {seconds:g} s", _released(targets, "master", role.unfreeze))


def end_backends(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    if "master" in targets.busy:
        return MISSED
    ended = targets.servers.sql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
    )
    return InjectedFault(f"{len(ended)} backends")


def lock_table(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    if not _claimed(targets, "master"):
        return MISSED
    schema = targets.fleet.schema
    address = targets.servers.roles["master"].server.address

    async def hold() -> None:
        connection = await asyncpg.connect(address)
        try:
            async with connection.transaction():
                await connection.execute(f'LOCK TABLE "{schema}".job IN ACCESS EXCLUSIVE MODE')
                await asyncio.sleep(seconds)
        finally:
            connection.terminate()

    thread = threading.Thread(target=_quietly, args=(hold,), daemon=True)
    thread.start()
    return InjectedFault(f"for {seconds:g} s", _released(targets, "master", thread.join))


def use_up_connections(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    if not _claimed(targets, "master"):
        return MISSED
    address = targets.servers.roles["master"].server.address
    taken: list[int] = []

    async def hog() -> None:
        held: list[asyncpg.Connection] = []
        end = time.monotonic() + seconds
        try:
            while time.monotonic() < end and len(held) < _HOGS_MAX:
                try:
                    held.append(await asyncpg.connect(address, timeout=5))
                    taken.append(1)
                except (asyncpg.TooManyConnectionsError, OSError, TimeoutError):
                    await asyncio.sleep(0.05)
        finally:
            for connection in held:
                connection.terminate()

    thread = threading.Thread(target=_quietly, args=(hog,), daemon=True)
    thread.start()
    time.sleep(0.5)
    targets.proxy.reset("*.master")
    return InjectedFault(f"for {seconds:g} s", _released(targets, "master", thread.join))


def _quietly(work: Callable[[], object]) -> None:
    with contextlib.suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError):
        asyncio.run(work())  # type: ignore[arg-type]  # both are coroutine functions


def fail_over_master(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    if not _claimed(targets, "master"):
        return MISSED

    def take_over() -> None:
        targets.servers.fail_over_master()
        targets.proxy.lead("*.master", targets.servers.roles["master"].upstream)

    # All of it is the healing: a copy of the data takes seconds, and the others must not wait for it.
    return InjectedFault("a synchronous standby is attached and promoted", _released(targets, "master", take_over))


# ---------------------------------------------------------------- the stores


def kill_store(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    name = _a_store(targets, rng)
    if name is None:
        return MISSED
    role = targets.servers.roles[name]
    role.kill()
    return InjectedFault(f"{name}, {seconds:.1f} s", _released(targets, name, role.up), store=name)


def freeze_store(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    name = _a_store(targets, rng)
    if name is None:
        return MISSED
    role = targets.servers.roles[name]
    role.freeze()
    return InjectedFault(f"{name} for {seconds:g} s", _released(targets, name, role.unfreeze))


def flush_store(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    name = _a_store(targets, rng)
    if name is None:
        return MISSED
    try:
        with targets.servers.client(name) as client:
            client.flushall()
    finally:
        targets.busy.discard(name)
    return InjectedFault(name, store=name)


def cut_log(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    """Of the store that syncs every second: this is what a crash of its machine does."""
    if not _claimed(targets, "default"):
        return MISSED
    role = targets.servers.roles["default"]
    role.kill()
    cut = targets.servers.truncate_log("default", rng.uniform(0.001, 0.05))
    return InjectedFault(f"default, {cut} bytes", _released(targets, "default", role.up), store="default")


def fail_over_store(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    name = _a_store(targets, rng)
    if name is None:
        return MISSED

    def take_over() -> None:
        targets.servers.fail_over_store(name, seconds)
        targets.proxy.lead(f"*.{name}", targets.servers.roles[name].upstream)

    return InjectedFault(f"{name}, a replica {seconds:g} s behind", _released(targets, name, take_over), store=name)


def _configured(
    targets: Targets, rng: random.Random, setting: str, value: str, healthy: str, *, cut: bool
) -> InjectedFault:
    name = _a_store(targets, rng)
    if name is None:
        return MISSED
    client = targets.servers.client(name)
    client.config_set(setting, value)
    if cut:
        targets.proxy.reset(f"*.{name}")

    def heal() -> None:
        with client:
            client.config_set(setting, healthy)

    return InjectedFault(f"{name}, {setting} {value}", _released(targets, name, heal))


def use_up_clients(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    return _configured(targets, rng, "maxclients", "4", "10000", cut=True)


def fill_memory(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    return _configured(targets, rng, "maxmemory", "1mb", "0", cut=False)


# ---------------------------------------------------------------- a store of several servers


def kill_primary(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    """The killed server comes back as a replica: after so many seconds, when another one has taken its place."""
    return _replicated(targets, lambda store: store.kill_primary(rng))


def command_failover(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    return _replicated(targets, lambda store: store.command_failover(rng))


def move_slots(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    return _replicated(targets, lambda store: store.move_slots(rng) if isinstance(store, ClusterStore) else "")


def _replicated(targets: Targets, inject: Callable[[WatchedStore | ClusterStore], str]) -> InjectedFault:
    """``inject`` returns what it did; empty: there was no target."""
    store = targets.servers.replicated
    if store is None or not _claimed(targets, "default"):
        return MISSED
    target = inject(store)
    if not target:
        targets.busy.discard("default")
        return MISSED
    return InjectedFault(target, _released(targets, "default", store.mend), store="default")


# ---------------------------------------------------------------- disks


def _a_disk(targets: Targets, rng: random.Random) -> str | None:
    free = [name for name in ("master", *targets.servers.single_stores) if name not in targets.busy]
    name = rng.choice(free) if free else None
    return name if name is not None and _claimed(targets, name) else None


def stall_disk(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    name = _a_disk(targets, rng)
    disk = targets.servers.roles[name].disk if name else None
    if name is None or disk is None:
        return MISSED
    disk.stall(seconds)
    return InjectedFault(f"{name} for {seconds:g} s", _released(targets, name, disk.wait))


def slow_disk(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    name = _a_disk(targets, rng)
    disk = targets.servers.roles[name].disk if name else None
    if name is None or disk is None:
        return MISSED
    disk.slow(seconds)
    return InjectedFault(f"{name} for {seconds:g} s", _released(targets, name, disk.wait))


def fill_disk(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    name = _a_disk(targets, rng)
    disk = targets.servers.roles[name].disk if name else None
    if name is None or disk is None:
        return MISSED
    disk.fill()

    def heal() -> None:
        disk.empty()
        targets.servers.roles[name].up()

    return InjectedFault(f"{name} for {seconds:g} s", _released(targets, name, heal))
