"""``results`` and ``as_ended``: many jobs at once, in order, in few statements, and what happens to those that fail."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

import pytest

from jobmaster.client.receipts import JobReceipt
from jobmaster.handlers import Handlers
from jobmaster.model.errors import JobFailed, JobMasterError, WaitTimeout
from jobmaster.model.job import Entry, ErrorInfo, JobState
from tests.integration.client.conftest import OpenCluster
from tests.integration.client.fixture import ClientFixture, Size, resize
from tests.support.patience import PATIENCE_SECONDS


async def submitted(client: ClientFixture, count: int) -> list[JobReceipt[Size]]:
    return [await client.cluster.submit(resize, {"path": str(number)}) for number in range(count)]


async def finish(client: ClientFixture, paths: Sequence[str], state: JobState = JobState.SUCCEEDED) -> None:
    """End the jobs of these paths (the width of the result is the path), and leave the others claimed."""
    for bucket in client.agent.buckets["default", 3]:
        name, entries = await client.agent.claim(bucket)
        for entry in entries:
            path = entry.args.decode().split('"')[3]
            if path in paths:
                result = b'{"width":%b,"height":1}' % path.encode()
                error = None if state is JobState.SUCCEEDED else ErrorInfo(type="E", message=path)
                await client.agent.finish(
                    bucket, (name, [entry]), state=state, result=None if error else result, error=error
                )


async def test_results_come_in_the_order_of_the_jobs(client: ClientFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    receipts = await submitted(client, 1203)
    queries, ended = 0, client.master.queries.ended

    async def counted(job_ids: Sequence[bytes]) -> Any:
        nonlocal queries
        queries += 1
        return await ended(job_ids)

    monkeypatch.setattr(client.master.queries, "ended", counted)
    waiter = asyncio.create_task(client.cluster.results(reversed(receipts), timeout=PATIENCE_SECONDS))
    await asyncio.sleep(0)
    await client.agent.work_off(result=b'{"width":4,"height":2}')
    assert await waiter == [Size(4, 2)] * 1203
    assert queries == 3, "500 in one statement"
    first, second = await submitted(client, 2)
    await finish(client, ["0", "1"])
    assert await client.cluster.results([second, first, second]) == [Size(1, 1), Size(0, 1), Size(1, 1)]
    assert await client.cluster.results([str(first), second.id, first.id_bytes]) == [Size(0, 1), Size(1, 1), Size(0, 1)]
    assert await client.cluster.results([]) == []


async def test_the_first_failure_is_raised_while_others_run(client: ClientFixture) -> None:
    receipts = await submitted(client, 3)
    await finish(client, ["1"], JobState.FAILED)
    with pytest.raises(JobFailed, match="ended as FAILED: E: 1") as caught:
        await asyncio.wait_for(client.cluster.results(receipts), PATIENCE_SECONDS)
    assert caught.value.info == ErrorInfo(type="E", message="1")


@pytest.mark.slow
async def test_exceptions_in_place_of_results(client: ClientFixture) -> None:
    receipts = await submitted(client, 4)
    await finish_some(client, receipts[0], JobState.SUCCEEDED)
    await finish_some(client, receipts[1], JobState.FAILED)
    await receipts[2].cancel()
    values = await client.cluster.results(receipts, timeout=3.0, return_exceptions=True)
    assert values[0] == Size(7, 1)
    assert isinstance(values[1], JobFailed)
    assert isinstance(values[2], JobFailed)
    assert values[2].state is JobState.CANCELLED
    assert isinstance(values[3], WaitTimeout)
    with pytest.raises(JobFailed):
        await client.cluster.results(receipts, timeout=3.0)
    with pytest.raises(WaitTimeout):
        await client.cluster.results([receipts[0], receipts[3]], timeout=0.2)


async def finish_some(client: ClientFixture, receipt: JobReceipt[Any], state: JobState) -> None:
    """Record the outcome of one job that lies in its bucket."""
    view = await receipt.get()
    bucket = next(one for one in client.agent.buckets["default", 3] if one.id == view.bucket_id)
    entry = Entry(view.id_bytes, 1, view.handler, view.arguments_json)
    error = None if state is JobState.SUCCEEDED else ErrorInfo(type="E", message="m")
    result = b'{"width":7,"height":1}' if error is None else None
    await client.agent.finish(bucket, ("none", [entry]), state=state, result=result, error=error)


async def test_a_result_of_another_version_of_the_handler_is_one_clear_error(
    client: ClientFixture, open_cluster: OpenCluster
) -> None:
    (receipt,) = await submitted(client, 1)
    await client.agent.work_off(result=b'{"breadth":4}')
    with pytest.raises(JobMasterError, match=r"does not fit the return annotation of 'images.resize'"):
        await receipt.result(timeout=PATIENCE_SECONDS)
    assert (await receipt.get()).result_value == {"breadth": 4}
    without_code = await open_cluster(handlers=Handlers())
    assert await without_code.results([receipt.id]) == [{"breadth": 4}]


async def test_jobs_come_as_they_end_each_as_it_was_given(client: ClientFixture) -> None:
    receipts = await submitted(client, 4)
    given = [receipts[0], receipts[1].id, str(receipts[2]), receipts[3], receipts[3]]
    order: list[Any] = []
    async with aclosing(client.cluster.as_ended(given, timeout=PATIENCE_SECONDS)) as ended:  # type: ignore[type-var]
        for receipt, state in ((receipts[2], JobState.SUCCEEDED), (receipts[0], JobState.FAILED)):
            await finish_some(client, receipt, state)
            order.append(await anext(ended))
        await receipts[1].cancel()
        order.append(await anext(ended))
        await finish_some(client, receipts[3], JobState.SUCCEEDED)
        order += [one async for one in ended]
    assert order == [
        (str(receipts[2]), JobState.SUCCEEDED),
        (receipts[0], JobState.FAILED),
        (receipts[1].id, JobState.CANCELLED),
        (receipts[3], JobState.SUCCEEDED),
        (receipts[3], JobState.SUCCEEDED),
    ]


async def test_a_loop_over_ended_jobs_ends_in_time_and_leaves_nothing_behind(client: ClientFixture) -> None:
    receipts = await submitted(client, 2)
    await finish_some(client, receipts[0], JobState.SUCCEEDED)
    ended = client.cluster.as_ended(receipts, timeout=0.3)
    assert await anext(ended) == (receipts[0], JobState.SUCCEEDED)
    with pytest.raises(WaitTimeout):
        await anext(ended)
    async with aclosing(client.cluster.as_ended(receipts)) as left:  # type: ignore[type-var]
        async for _ in left:
            break
    assert client.cluster._waiter is not None
    assert client.cluster._waiter._waiters == {}
