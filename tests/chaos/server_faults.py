"""Faults of PostgreSQL, of the stores, and of the disks below them."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import Callable

import asyncpg

from tests.chaos.hit import MISSED, Hit, Stage
from tests.chaos.servers import STORES

_DOWN_SECONDS = (0.0, 1.5)
_HOGS_MAX = 400


def _claimed(stage: Stage, name: str) -> bool:
    """True when nothing else is being done to the server; it is ours from now on."""
    if name in stage.busy:
        return False
    stage.busy.add(name)
    return True


def _released(stage: Stage, name: str, heal: Callable[[], None]) -> Callable[[], None]:
    def release() -> None:
        try:
            heal()
        finally:
            stage.busy.discard(name)

    return release


def _a_store(stage: Stage, rng: random.Random) -> str | None:
    free = [name for name in STORES if name not in stage.busy]
    name = rng.choice(free) if free else None
    return name if name is not None and _claimed(stage, name) else None


# ---------------------------------------------------------------- the master


def _master(stage: Stage, down: Callable[[], None], seconds: float, said: str) -> Hit:
    """Down, and up again after so many seconds."""
    if not _claimed(stage, "master"):
        return MISSED
    down()
    place = stage.servers.places["master"]
    return Hit(f"{said}, {seconds:.1f} s", _released(stage, "master", place.up))


def restart_master(stage: Stage, rng: random.Random, seconds: float) -> Hit:
    place = stage.servers.places["master"]
    return _master(stage, place.quit_immediately, 0.0, "immediate shutdown")


def kill_master(stage: Stage, rng: random.Random, seconds: float) -> Hit:
    return _master(stage, stage.servers.places["master"].kill, 0.0, "SIGKILL")


def stop_master(stage: Stage, rng: random.Random, seconds: float) -> Hit:
    return _master(stage, stage.servers.places["master"].quit_immediately, seconds, "down")


def freeze_master(stage: Stage, rng: random.Random, seconds: float) -> Hit:
    if not _claimed(stage, "master"):
        return MISSED
    place = stage.servers.places["master"]
    place.freeze()
    return Hit(f"{len(place.frozen)} processes for {seconds:g} s", _released(stage, "master", place.thaw))


def end_backends(stage: Stage, rng: random.Random, seconds: float) -> Hit:
    if "master" in stage.busy:
        return MISSED
    ended = stage.servers.sql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
    )
    return Hit(f"{len(ended)} backends")


def lock_table(stage: Stage, rng: random.Random, seconds: float) -> Hit:
    if not _claimed(stage, "master"):
        return MISSED
    schema = stage.fleet.schema
    address = stage.servers.places["master"].server.address

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
    return Hit(f"for {seconds:g} s", _released(stage, "master", thread.join))


def use_up_connections(stage: Stage, rng: random.Random, seconds: float) -> Hit:
    if not _claimed(stage, "master"):
        return MISSED
    address = stage.servers.places["master"].server.address
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
    stage.proxy.reset("*.master")
    return Hit(f"for {seconds:g} s", _released(stage, "master", thread.join))


def _quietly(work: Callable[[], object]) -> None:
    with contextlib.suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError):
        asyncio.run(work())  # type: ignore[arg-type]  # both are coroutine functions


def fail_over_master(stage: Stage, rng: random.Random, seconds: float) -> Hit:
    if not _claimed(stage, "master"):
        return MISSED

    def take_over() -> None:
        stage.servers.fail_over_master()
        stage.proxy.lead("*.master", stage.servers.places["master"].upstream)

    # All of it is the healing: a copy of the data takes seconds, and the others must not wait for it.
    return Hit("a synchronous standby is attached and promoted", _released(stage, "master", take_over))


# ---------------------------------------------------------------- the stores


def kill_store(stage: Stage, rng: random.Random, seconds: float) -> Hit:
    name = _a_store(stage, rng)
    if name is None:
        return MISSED
    place = stage.servers.places[name]
    place.kill()
    return Hit(f"{name}, {seconds:.1f} s", _released(stage, name, place.up), store=name)


def freeze_store(stage: Stage, rng: random.Random, seconds: float) -> Hit:
    name = _a_store(stage, rng)
    if name is None:
        return MISSED
    place = stage.servers.places[name]
    place.freeze()
    return Hit(f"{name} for {seconds:g} s", _released(stage, name, place.thaw))


def flush_store(stage: Stage, rng: random.Random, seconds: float) -> Hit:
    name = _a_store(stage, rng)
    if name is None:
        return MISSED
    try:
        with stage.servers.client(name) as client:
            client.flushall()
    finally:
        stage.busy.discard(name)
    return Hit(name, store=name)


def cut_log(stage: Stage, rng: random.Random, seconds: float) -> Hit:
    """Of the store that syncs every second: this is what a crash of its machine does."""
    if not _claimed(stage, "default"):
        return MISSED
    place = stage.servers.places["default"]
    place.kill()
    cut = stage.servers.truncate_log("default", rng.uniform(0.001, 0.05))
    return Hit(f"default, {cut} bytes", _released(stage, "default", place.up), store="default")


def fail_over_store(stage: Stage, rng: random.Random, seconds: float) -> Hit:
    name = _a_store(stage, rng)
    if name is None:
        return MISSED

    def take_over() -> None:
        stage.servers.fail_over_store(name, seconds)
        stage.proxy.lead(f"*.{name}", stage.servers.places[name].upstream)

    return Hit(f"{name}, a replica {seconds:g} s behind", _released(stage, name, take_over), store=name)


def _configured(stage: Stage, rng: random.Random, setting: str, value: str, healthy: str, *, cut: bool) -> Hit:
    name = _a_store(stage, rng)
    if name is None:
        return MISSED
    client = stage.servers.client(name)
    client.config_set(setting, value)
    if cut:
        stage.proxy.reset(f"*.{name}")

    def heal() -> None:
        with client:
            client.config_set(setting, healthy)

    return Hit(f"{name}, {setting} {value}", _released(stage, name, heal))


def use_up_clients(stage: Stage, rng: random.Random, seconds: float) -> Hit:
    return _configured(stage, rng, "maxclients", "4", "10000", cut=True)


def fill_memory(stage: Stage, rng: random.Random, seconds: float) -> Hit:
    return _configured(stage, rng, "maxmemory", "1mb", "0", cut=False)


# ---------------------------------------------------------------- disks


def _a_disk(stage: Stage, rng: random.Random) -> str | None:
    free = [name for name in ("master", *STORES) if name not in stage.busy]
    name = rng.choice(free) if free else None
    return name if name is not None and _claimed(stage, name) else None


def stall_disk(stage: Stage, rng: random.Random, seconds: float) -> Hit:
    name = _a_disk(stage, rng)
    disk = stage.servers.places[name].disk if name else None
    if name is None or disk is None:
        return MISSED
    disk.stall(seconds)
    return Hit(f"{name} for {seconds:g} s", _released(stage, name, disk.wait))


def slow_disk(stage: Stage, rng: random.Random, seconds: float) -> Hit:
    name = _a_disk(stage, rng)
    disk = stage.servers.places[name].disk if name else None
    if name is None or disk is None:
        return MISSED
    disk.slow(seconds)
    return Hit(f"{name} for {seconds:g} s", _released(stage, name, disk.wait))


def fill_disk(stage: Stage, rng: random.Random, seconds: float) -> Hit:
    name = _a_disk(stage, rng)
    disk = stage.servers.places[name].disk if name else None
    if name is None or disk is None:
        return MISSED
    disk.fill()

    def heal() -> None:
        disk.empty()
        stage.servers.places[name].up()

    return Hit(f"{name} for {seconds:g} s", _released(stage, name, heal))
