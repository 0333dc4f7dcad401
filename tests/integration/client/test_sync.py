"""The cluster without await: from scripts, from many threads, after forks, at the end of the process."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import pytest

from jobmaster.agentstore.store import AgentStore
from jobmaster.client.cluster import Cluster
from jobmaster.client.sync import SyncCluster, SyncJobRef, SyncReceipt
from jobmaster.clock import new_id
from jobmaster.master.master import Master
from jobmaster.model.errors import InputError, InvalidArguments, JobMasterError, NotFound, Unavailable
from jobmaster.model.job import Durability, JobState
from tests.integration.client.fixture import ClientFixture, Size, handlers, resize
from tests.support.patience import PATIENCE_SECONDS


async def test_many_results_lists_and_retries(client: ClientFixture, plain: SyncCluster) -> None:
    def submit() -> list[SyncReceipt[Size]]:
        return [plain.submit(resize, {"path": str(number)}) for number in range(3)]

    def read(receipts: list[SyncReceipt[Size]]) -> None:
        first: Size = plain.results(receipts, timeout=PATIENCE_SECONDS)[0]
        assert first == Size(4, 2)
        ended = plain.as_ended([*receipts, receipts[0]], timeout=PATIENCE_SECONDS)
        assert sorted(ended, key=lambda pair: pair[0].id) == [
            (receipt, JobState.SUCCEEDED) for receipt in sorted([*receipts, receipts[0]], key=lambda one: one.id)
        ]
        assert [view.id for view in plain.jobs(state="SUCCEEDED")] == [receipt.id for receipt in receipts[::-1]]
        assert [line.concluding for line in plain.attempts(receipts[0])] == [True]
        held = plain.submit(resize, {"path": "a"}, after=3600)
        held.cancel()
        again = plain.retry(held, {"path": "b"})
        assert (again.get().arguments, plain.retry(held.id, {"path": "b"}).duplicate) == ({"path": "b"}, True)
        with pytest.raises(NotFound):
            plain.wait(new_id())
        for receipt, state in plain.as_ended([again, receipts[0]]):
            assert (receipt, state) == (receipts[0], JobState.SUCCEEDED)
            break

    receipts = await asyncio.to_thread(submit)
    await client.agent.work_off(result=b'{"width":4,"height":2}')
    await asyncio.to_thread(read, receipts)


async def test_a_job_that_waits_is_changed(client: ClientFixture, plain: SyncCluster) -> None:
    await client.agent.open("payroll", 3)

    def work() -> list[tuple[str, str, str]]:
        receipt = plain.submit(resize, {"path": "a"})
        changes = [
            receipt.reschedule(after=3600),
            receipt.reprioritise("low"),
            receipt.move("payroll"),
            plain.change(receipt, priority="medium"),
            receipt.run_now(),
            plain.reschedule(str(receipt), at=datetime(2031, 1, 1, tzinfo=UTC)),
            plain.reprioritise(receipt.id, 5),
            plain.move(receipt, "default"),
            plain.run_now(receipt),
        ]
        assert receipt.get().state is JobState.HELD
        return [(each.effect.value, each.priority.label, each.lane) for each in changes]

    assert await asyncio.to_thread(work) == [
        ("CHANGED", "medium", "default"),
        ("CHANGED", "low", "default"),
        ("CHANGED", "low", "payroll"),
        ("CHANGED", "medium", "payroll"),
        ("CHANGED", "medium", "payroll"),
        ("CHANGED", "medium", "payroll"),
        ("CHANGED", "critical", "payroll"),
        ("CHANGED", "critical", "default"),
        ("CHANGED", "critical", "default"),
    ]


async def test_submit_wait_and_result(client: ClientFixture, plain: SyncCluster) -> None:
    def work() -> Size:
        receipt = plain.submit(resize, {"path": "a"})
        assert receipt.level is Durability.STORE
        assert receipt.get().state is JobState.SAVE_PENDING
        submitted.set()
        return receipt.result(timeout=PATIENCE_SECONDS)

    submitted = threading.Event()
    running = asyncio.get_running_loop().run_in_executor(None, work)
    await asyncio.to_thread(submitted.wait)
    await client.agent.work_off(result=b'{"width":1,"height":2}')
    assert await running == Size(1, 2)


async def test_many_threads_share_it(client: ClientFixture, plain: SyncCluster) -> None:
    def one(i: int) -> bytes:
        return plain.submit(resize, {"path": str(i)}).id_bytes

    with ThreadPoolExecutor(16) as pool:
        submitted = await asyncio.to_thread(lambda: set(pool.map(one, range(400))))
    assert len(submitted) == 400
    assert submitted == (await client.waiting()).keys()


async def test_ids_have_the_same_forms_without_await(client: ClientFixture, plain: SyncCluster) -> None:
    def work() -> None:
        receipt = plain.submit(resize, {"path": "a"}, after=3600)
        assert receipt.id == UUID(str(receipt))
        assert receipt.id.bytes == receipt.id_bytes
        forms: list[SyncJobRef] = [receipt, receipt.get(), receipt.id, str(receipt.id), receipt.id_bytes]
        for form in forms:
            assert plain.get(form).id == receipt.id

    await asyncio.to_thread(work)


async def test_bulk_cancel_and_errors_come_through(client: ClientFixture, plain: SyncCluster) -> None:
    def work() -> None:
        assert plain.submit_many(({"path": str(i)} for i in range(3000)), resize).submitted == 3000
        held = plain.submit(resize, {"path": "a"}, after=3600)
        assert plain.state(held) is JobState.HELD
        assert held.cancel() is JobState.CANCELLED
        assert plain.wait_all([held], timeout=PATIENCE_SECONDS) == {held.id: JobState.CANCELLED}
        with pytest.raises(InvalidArguments):
            plain.submit(resize, {})
        with pytest.raises(InputError, match="takes an open connection of"):
            plain.submit(resize, {"path": "a"}, connection=object())

    await asyncio.to_thread(work)
    assert len(await client.waiting()) == 3000


async def test_submit_on_a_closed_cluster_raises_an_error(plain: SyncCluster) -> None:
    def work() -> None:
        plain.submit(resize, {"path": "a"})
        plain.close()
        plain.close()
        with pytest.raises(JobMasterError, match="is closed"):
            plain.submit(resize, {"path": "a"})

    await asyncio.to_thread(work)


async def test_an_opener_that_fails_is_asked_again_next_time(client: ClientFixture) -> None:
    tries = 0

    async def opener() -> Cluster:
        nonlocal tries
        tries += 1
        raise Unavailable("not yet")

    cluster = SyncCluster(opener)
    for _ in range(2):
        with pytest.raises(Unavailable, match="not yet"):
            await asyncio.to_thread(cluster.submit, "x")
    assert tries == 2
    await asyncio.to_thread(cluster.close)


async def test_use_in_a_forked_child_is_refused_with_advice(plain: SyncCluster) -> None:
    def work() -> str:
        plain.submit(resize, {"path": "a"})
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                plain.submit(resize, {"path": "a"})
                said = "submitted"
            except JobMasterError as error:
                said = str(error)
            os.write(writing, said.encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            said = pipe.read()
        os.waitpid(child, 0)
        return said

    assert "before the process was forked" in await asyncio.to_thread(work)


async def test_a_cluster_made_before_a_fork_and_not_used_works_in_every_process(client: ClientFixture) -> None:
    url = client.settings.stores["default"].url
    script = f"""
import os, sys
from jobmaster.client.sync import SyncCluster, SyncJobRef
from tests.integration.client.test_sync import open_for_script
cluster = SyncCluster(lambda: open_for_script({client.dsn!r}, {url!r}, {client.settings.cluster!r}))
children = []
for _ in range(2):
    child = os.fork()
    if child == 0:
        print(cluster.submit("images.resize", {{"path": "a"}}).level.value, flush=True)
        cluster.close()
        os._exit(0)
    children.append(child)
codes = [os.waitpid(child, 0)[1] for child in children]
print(cluster.submit("images.resize", {{"path": "a"}}).level.value)
cluster.close()
sys.exit(any(codes))
"""
    ran = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", script], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == ["store"] * 3
    assert len(await client.waiting()) == 3


async def test_a_script_that_forgets_to_close_ends_all_the_same(client: ClientFixture) -> None:
    url = client.settings.stores["default"].url
    script = f"""
import asyncio
from jobmaster.client.sync import SyncCluster, SyncJobRef
from tests.integration.client.test_sync import open_for_script
cluster = SyncCluster(lambda: open_for_script({client.dsn!r}, {url!r}, {client.settings.cluster!r}))
print(cluster.submit("images.resize", {{"path": "a"}}).level.value)
"""
    ended = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-W", "error", "-c", script],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        cwd=Path(__file__).parents[3],
        check=False,
    )
    assert (ended.stdout, ended.stderr, ended.returncode) == ("store\n", "", 0)


async def open_for_script(dsn: str, url: str, cluster: str) -> Cluster:
    """What the script above opens."""
    from tests.integration.client.fixture import settings_for

    settings = settings_for(cluster, {"default": url})
    master = await Master.connect(
        dsn=dsn, schema=settings.schema_name(), settings=settings.master, application_name="script"
    )
    store = await AgentStore.connect(cluster=cluster, name="default", url=url, settings=settings.stores["default"])

    async def close() -> None:
        await master.close()
        await store.close()

    return Cluster(settings, master, {"default": store}, handlers=handlers, on_close=close)
