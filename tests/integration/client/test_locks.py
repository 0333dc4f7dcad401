"""Locks between programs: a holder that is killed, a holder that is cut off, threads, and actions that run once."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from jobmaster.client.cluster import Cluster
from jobmaster.client.sync import SyncCluster
from jobmaster.master.master import Master
from jobmaster.model.errors import InputError, LockHeld, LockLost
from jobmaster.settings.model import ClusterSettings
from tests.support.patience import PATIENCE_SECONDS
from tests.support.waiting import eventually

HOLDER = """
import asyncio, sys
from jobmaster.client.cluster import Cluster
from jobmaster.master.master import Master
from jobmaster.settings.model import ClusterSettings, MasterSettings

async def main(dsn, schema):
    master = await Master.connect(dsn=dsn, schema=schema, settings=MasterSettings(), application_name="holder")
    cluster = Cluster(ClusterSettings(cluster="test"), master, {})
    async with cluster.lock("import", ttl=6, label="nightly") as lock:
        print(lock.fence, flush=True)
        await asyncio.Event().wait()

asyncio.run(main(*sys.argv[1:]))
"""

OpenProgram = Callable[[], Any]


@pytest.fixture
async def open_program(migrated_dsn: str, client_settings: ClusterSettings, opened: AsyncExitStack) -> OpenProgram:
    """Opens programs with connections of their own; none of them needs a store."""

    async def program() -> Cluster:
        master = await Master.connect(
            dsn=migrated_dsn,
            schema=client_settings.schema_name(),
            settings=client_settings.master,
            application_name="program",
        )
        return Cluster(client_settings, master, {}, on_close=master.close)

    async def make() -> Cluster:
        cluster = await program()
        opened.push_async_callback(cluster.close)
        return cluster

    make.program = program  # type: ignore[attr-defined]
    cleaner = await make()
    for lock in await cleaner.locks():
        await cleaner.release_lock(lock.name)
    return make


async def test_one_lock_is_found_by_its_name_however_many_there_are(
    open_program: OpenProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobmaster.client.calls.lock_calls.LISTED_MAX", 1)
    cluster = await open_program()
    async with cluster.lock("a"), cluster.lock("b"):
        assert [each.name for each in await cluster.locks()] == ["a"]
        assert [each.name for each in await cluster.locks("b")] == ["b"]
        assert await cluster.locks("c") == []
        with pytest.raises(InputError, match="'actor'") as refused:
            await cluster.release_lock("b", actor="")
        assert "name of lock" not in refused.value.message
        assert [each.name for each in await cluster.locks("b")] == ["b"]


async def test_two_programs_exclude_each_other(open_program: OpenProgram) -> None:
    one, other = await open_program(), await open_program()
    async with one.lock("import", label="nightly") as lock:
        with pytest.raises(LockHeld, match=r"lock 'import' is held by .* pid \d+: nightly until") as refused:
            await other.lock("import").__aenter__()
        assert refused.value.exit_code == 4
        (listed,) = await other.locks()
        assert (listed.name, listed.fence) == ("import", lock.fence)
        async with other.lock("another"):
            assert [each.name for each in await one.locks()] == ["another", "import"]
    assert await one.locks() == []
    async with other.lock("import") as again:
        assert again.fence > lock.fence


async def test_a_body_is_renewed_beyond_the_ttl(open_program: OpenProgram) -> None:
    one, other = await open_program(), await open_program()
    async with one.lock("import", ttl=5):
        first: int = (await other.locks())[0].expires_us

        async def renewed() -> bool:
            present: int = (await other.locks())[0].expires_us
            return present > first + 1_000_000

        await eventually(renewed, PATIENCE_SECONDS, "two renewals")
        with pytest.raises(LockHeld):
            await other.lock("import").__aenter__()


@pytest.mark.slow
async def test_the_lock_of_a_killed_process_ends_after_its_ttl_and_not_before(
    open_program: OpenProgram, migrated_dsn: str, client_settings: ClusterSettings
) -> None:
    other = await open_program()
    holder = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", HOLDER, migrated_dsn, client_settings.schema_name()), stdout=asyncio.subprocess.PIPE
    )
    assert holder.stdout is not None
    fence = int(await asyncio.wait_for(holder.stdout.readline(), PATIENCE_SECONDS))
    holder.send_signal(signal.SIGKILL)
    await holder.wait()
    (left,) = await other.locks()
    assert (left.fence, left.holder.endswith(f"pid {holder.pid}: nightly")) == (fence, True)
    async with other.lock("import", wait=PATIENCE_SECONDS) as lock:
        (taken,) = await other.locks()
        assert lock.fence == taken.fence > fence
        assert taken.acquired_us > left.expires_us


async def test_an_operator_ends_the_body_of_a_holder(open_program: OpenProgram) -> None:
    one, other = await open_program(), await open_program()

    async def body() -> None:
        async with one.lock("import", ttl=5):
            released = await other.release_lock("import", actor="ann")
            assert released is not None
            async with other.lock("import"):
                await asyncio.Event().wait()

    with pytest.raises(LockLost, match="another program has taken it, or an operator has released it"):
        await asyncio.wait_for(body(), PATIENCE_SECONDS)
    assert await other.release_lock("import") is None


async def test_plain_code(open_program: OpenProgram) -> None:
    other = await open_program()
    plain = SyncCluster(open_program.program)  # type: ignore[attr-defined]

    def lose() -> None:
        with plain.lock("import", ttl=5) as lock:
            plain.release_lock("import")
            while True:  # until it is lost
                lock.check()
                threading.Event().wait(0.01)

    def work() -> list[str]:
        seen = []
        with plain.lock("import", ttl=5) as lock:
            lock.check()
            seen.append(plain.locks()[0].name)
            with pytest.raises(LockHeld), plain.lock("import"):
                raise AssertionError("two holders")
            with pytest.raises(InputError, match="has been used"):
                lock.__enter__()
        with pytest.raises(LockLost):
            lose()
        with pytest.raises(ValueError, match="own"), plain.lock("import"):
            raise ValueError("own")
        with pytest.raises(InputError, match="is not held"):
            plain.lock("import").check()
        seen.append(str(plain.once("plain", "1", lambda: seen.append("ran"))))
        seen.append(str(plain.once("plain", "1", lambda: seen.append("ran"))))
        return [*seen, *(one.name for one in plain.once_actions() if one.name == "plain")]

    try:
        assert await asyncio.to_thread(work) == ["import", "ran", "True", "False", "plain"]
    finally:
        await asyncio.to_thread(plain.close)
    assert await other.locks() == []


async def test_of_many_programs_one_runs_an_action(open_program: OpenProgram) -> None:
    programs = [await open_program() for _ in range(4)]
    ran: list[int] = []

    async def load() -> None:
        ran.append(1)
        await asyncio.sleep(0.05)

    answers = await asyncio.gather(*(each.once("load-rates", "3", load) for each in programs))
    assert (sorted(answers), ran) == ([False, False, False, True], [1])
    assert await programs[0].once("load-rates", "4", load)
    done = [(each.name, each.version) for each in await programs[0].once_actions() if each.name == "load-rates"]
    assert done == [("load-rates", "4"), ("load-rates", "3")]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (("", "1", print), "the name of action '' is empty"),
        (("load", 3, print), "must be text, not int"),
        (("load", "", print), "the version of action 'load' is empty"),
        (("load", "1", None), "None is not a function"),
        (("load", "1", lambda wanted: wanted), "is called without arguments"),
    ],
)
async def test_an_action_that_cannot_be_meant(open_program: OpenProgram, values: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        await (await open_program()).once(*values)
