"""``jobmaster job retry``: an ended job again, as a new one; asked twice, the same new one, while that has not failed too."""

from __future__ import annotations

from typing import Any

from jobmaster.cli.commands.job import _retry
from jobmaster.model.job import ErrorInfo, JobState
from tests.integration.client.fixture import ClientFixture, resize


async def ended(client: ClientFixture, state: JobState) -> None:
    """Everything that waits ends so."""
    for buckets in client.agent.buckets.values():
        for bucket in buckets:
            error = None if state is JobState.SUCCEEDED else ErrorInfo(type="E", message="m", reason="error")
            await client.agent.finish(bucket, await client.agent.claim(bucket), state=state, error=error)


async def retried(client: ClientFixture, job: Any) -> dict[str, Any]:
    return await _retry(client.cluster, await client.cluster.get(job))


async def test_a_retry_that_failed_is_what_is_run_again(client: ClientFixture) -> None:
    first = await client.cluster.submit(resize, {"path": "a"})
    await ended(client, JobState.FAILED)
    second = await retried(client, first)
    assert (second["retry_of"], second["duplicate"]) == (str(first), False)
    assert await retried(client, first) == {**second, "duplicate": True}
    await ended(client, JobState.FAILED)
    third = await retried(client, first)
    assert (third["retry_of"], third["duplicate"]) == (second["id"], False)
    await ended(client, JobState.FAILED)
    fourth = await retried(client, second["id"])
    assert (fourth["retry_of"], fourth["duplicate"]) == (third["id"], False)
    await ended(client, JobState.SUCCEEDED)
    assert await retried(client, first) == {**fourth, "duplicate": True}
