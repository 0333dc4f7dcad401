"""Both servers in one directory, and what is left when their owner goes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import asyncpg
import pytest
import redis

from jobmaster.embedded import (
    BinariesMissing,
    DirectoryInUse,
    EmbeddedCluster,
    EmbeddedOptions,
    read_status,
    stop_owner,
)
from jobmaster.embedded.directory import SOCKET_PATH_BYTES_MAX, ServerDirectory
from tests.integration.embedded.conftest import OWNER, Owner, linux_only, processes_on
from tests.support.patience import PATIENCE_SECONDS
from tests.support.waiting import wait_until

FAST = EmbeddedOptions(durable=False)
FORKING_OWNER = OWNER.replace(
    'print("ready", flush=True)',
    'import os; child = os.fork() or signal.pause(); print("ready", flush=True); print(child, flush=True)',
)


async def write(cluster: EmbeddedCluster) -> None:
    connection = await asyncpg.connect(cluster.dsn)
    await connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
    await connection.close()
    with redis.Redis.from_url(cluster.url) as client:
        client.set("kept", 42)


async def test_both_servers_answer_and_report_their_version(directory: Path) -> None:
    with EmbeddedCluster(directory, FAST) as cluster:
        await write(cluster)
        status = cluster.status()
        assert status.running
        assert status.owner_pid == os.getpid()
        assert (status.postgres.address, status.valkey.address) == (cluster.dsn, cluster.url)
        assert "PostgreSQL" in cluster.describe()[0]
        assert cluster.describe()[1].startswith(("Valkey", "Redis"))
    assert not read_status(directory).running
    assert read_status(directory).owner_pid is None


def test_others_can_enter_none_of_it(directory: Path) -> None:
    with EmbeddedCluster(directory, FAST):
        for room in (".", "postgres", "postgres/data", "valkey", "valkey/data"):
            assert (directory / room).stat().st_mode & 0o077 == 0


def test_a_second_owner_is_refused_and_the_first_goes_on(directory: Path, start_owner: Callable[..., Owner]) -> None:
    owner = start_owner(directory)
    with pytest.raises(DirectoryInUse, match=f"in use by process {owner.pid}"):
        EmbeddedCluster(directory).start()
    status = read_status(directory)
    assert status.running
    assert status.owner_pid == owner.pid


def test_stop_owner_ends_the_servers_of_another_process(directory: Path, start_owner: Callable[..., Owner]) -> None:
    owner = start_owner(directory)
    assert stop_owner(directory)
    assert owner.wait(PATIENCE_SECONDS) == 0
    assert processes_on(directory) == []
    assert not stop_owner(directory)


@linux_only
@pytest.mark.slow
async def test_sigkill_of_the_owner_leaves_no_process_and_no_harm(
    directory: Path, start_owner: Callable[..., Owner]
) -> None:
    with EmbeddedCluster(directory, FAST) as first:
        await write(first)
    owner = start_owner(directory)
    owner.kill()
    # At once, while the guardians are still at work: the new owner waits for them instead of giving up.
    with EmbeddedCluster(directory, FAST) as cluster:
        connection = await asyncpg.connect(cluster.dsn)
        assert await connection.fetchval("SELECT answer FROM kept") == 42
        await connection.close()
        with redis.Redis.from_url(cluster.url) as client:
            assert client.get("kept") == b"42"
    assert "not properly shut down" not in (directory / "postgres" / "postgres.log").read_text()
    owner = start_owner(directory)
    owner.kill()
    wait_until(lambda: not processes_on(directory), 30, "servers and guardians of a killed owner end")


@pytest.mark.slow
@linux_only
def test_a_forked_child_of_a_killed_owner_keeps_no_server_alive(
    directory: Path, start_owner: Callable[..., Owner]
) -> None:
    owner = start_owner(directory, FORKING_OWNER)
    assert owner.stdout is not None
    child = int(owner.stdout.readline())
    owner.kill()
    try:
        wait_until(lambda: not processes_on(directory), 30, "servers end although a fork holds their pipe")
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.slow
@linux_only
def test_sigkill_of_a_guardian_ends_its_server_and_the_next_start_works(directory: Path) -> None:
    cluster = EmbeddedCluster(directory, FAST).start()
    try:
        for room in ("postgres", "valkey"):
            note = ServerDirectory(directory / room, f"{room}.log").note()
            assert note is not None
            os.kill(note.guardian.pid, signal.SIGKILL)
        wait_until(lambda: not processes_on(directory), 30, "servers of killed guardians end")
        assert not cluster.status().running
        cluster.start()
        assert cluster.status().running
    finally:
        cluster.stop()


@pytest.mark.slow
@linux_only
async def test_a_path_too_long_for_sockets_gets_a_short_way_in(
    directory: Path, start_owner: Callable[..., Owner]
) -> None:
    deep = directory / ("long-" * 20) / ("long-" * 20)
    with EmbeddedCluster(deep, FAST) as cluster:
        await write(cluster)
        notes = [ServerDirectory(deep / room, "").note() for room in ("postgres", "valkey")]
        scratches = [Path(note.scratch) for note in notes if note is not None and note.scratch is not None]
        assert len(scratches) == 2
        for scratch in scratches:
            assert scratch.stat().st_mode & 0o066 == 0
            assert len(str(scratch / "s" / ".s.PGSQL.5432")) <= SOCKET_PATH_BYTES_MAX
    assert not any(scratch.exists() for scratch in scratches)

    owner = start_owner(deep)
    note = ServerDirectory(deep / "postgres", "").note()
    assert note is not None
    assert note.scratch is not None
    owner.kill()
    wait_until(lambda: not processes_on(deep), 30, "servers of a killed owner end")
    assert not Path(note.scratch).exists()


def test_when_the_second_server_fails_the_first_does_not_stay(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBMASTER_VALKEY_SERVER", "/bin/false")
    with pytest.raises(BinariesMissing, match="/bin/false does not run"):
        EmbeddedCluster(directory, FAST).start()
    assert processes_on(directory) == []


def test_asking_creates_nothing(directory: Path) -> None:
    assert not read_status(directory).running
    assert not stop_owner(directory)
    assert not directory.exists()
