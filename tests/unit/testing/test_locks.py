"""Locks and actions that run once of an application, in the memory of its test."""

from __future__ import annotations

import asyncio

import pytest

import jobmaster
from jobmaster import LockHeld
from jobmaster.testing import Jobs


async def test_locks_of_an_application_exclude_each_other(jobs: Jobs) -> None:
    async with jobmaster.connect() as one, jobmaster.connect() as other:
        async with one.lock("import", label="nightly") as lock:
            with pytest.raises(LockHeld, match="nightly until"):
                await other.lock("import").__aenter__()
            assert [(each.name, each.fence) for each in await other.locks()] == [("import", lock.fence)]
        assert await one.locks() == []
        async with other.lock("import") as again:
            assert again.fence > lock.fence
            released = await one.release_lock("import")
            assert released is not None
            assert released.fence == again.fence


async def test_an_action_of_an_application_runs_once(jobs: Jobs) -> None:
    ran: list[str] = []
    async with jobmaster.connect() as cluster:
        assert await cluster.once("load", "1", lambda: ran.append("1"))
        assert not await cluster.once("load", "1", lambda: ran.append("again"))
        assert [each.version for each in await cluster.once_actions()] == ["1"]
    plain = jobmaster.connect_sync()

    def in_plain_code() -> bool:
        with plain, plain.lock("import") as lock:
            lock.check()
            return plain.once("load", "1", lambda: ran.append("third"))

    assert not await asyncio.to_thread(in_plain_code)
    assert ran == ["1"]
