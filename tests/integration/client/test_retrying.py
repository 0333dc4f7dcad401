"""``jobmaster job retry``: an ended job again, as a new one; asked twice, the same new one, while that has not failed too."""

from __future__ import annotations

from typing import Any

from jobmaster.cli.commands.job import _retry
from jobmaster.model.job import ErrorInfo, JobState
from tests.integration.client.fixture import Workshop, resize


async def ended(shop: Workshop, state: JobState) -> None:
    """Everything that waits ends so."""
    for buckets in shop.agent.buckets.values():
        for bucket in buckets:
            error = None if state is JobState.SUCCEEDED else ErrorInfo(type="E", message="m", reason="error")
            await shop.agent.finish(bucket, await shop.agent.claim(bucket), state=state, error=error)


async def retried(shop: Workshop, job: Any) -> dict[str, Any]:
    return await _retry(shop.cluster, await shop.cluster.get(job))


async def test_a_retry_that_failed_is_what_is_run_again(shop: Workshop) -> None:
    first = await shop.cluster.submit(resize, {"path": "a"})
    await ended(shop, JobState.FAILED)
    second = await retried(shop, first)
    assert (second["retry_of"], second["duplicate"]) == (str(first), False)
    assert await retried(shop, first) == {**second, "duplicate": True}
    await ended(shop, JobState.FAILED)
    third = await retried(shop, first)
    assert (third["retry_of"], third["duplicate"]) == (second["id"], False)
    await ended(shop, JobState.FAILED)
    fourth = await retried(shop, second["id"])
    assert (fourth["retry_of"], fourth["duplicate"]) == (third["id"], False)
    await ended(shop, JobState.SUCCEEDED)
    assert await retried(shop, first) == {**fourth, "duplicate": True}
