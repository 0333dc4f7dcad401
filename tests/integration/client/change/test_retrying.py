"""``Cluster.retry``: an ended job again, as a new one; asked twice, the same new one, while that has not failed too."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from pydantic import Base64Bytes, Json

from jobmaster.clock import new_id
from jobmaster.handlers import Handlers
from jobmaster.model.errors import Conflict, InputError, InvalidArguments, NotFound
from jobmaster.model.job import ErrorInfo, JobState, Priority
from tests.integration.client.conftest import OpenCluster
from tests.integration.client.fixture import ClientFixture, resize

models = Handlers()


@models.job(name="texts.parse")
async def parse(value: Json[Any]) -> None: ...


@models.job(name="texts.decode")
async def decode(value: Base64Bytes) -> None: ...


async def ended(client: ClientFixture, state: JobState) -> None:
    """Everything that waits ends so."""
    for buckets in client.agent.buckets.values():
        for bucket in buckets:
            error = None if state is JobState.SUCCEEDED else ErrorInfo(type="E", message="m", reason="error")
            await client.agent.finish(bucket, await client.agent.claim(bucket), state=state, error=error)


async def retried(client: ClientFixture, job: Any) -> dict[str, Any]:
    receipt = await client.cluster.retry(job)
    view = await receipt.get()
    return {"id": receipt.id, "retry_of": view.metadata["retry_of"], "duplicate": receipt.duplicate}


async def test_a_retry_that_failed_is_what_is_run_again(client: ClientFixture) -> None:
    first = await client.cluster.submit(resize, {"path": "a"})
    await ended(client, JobState.FAILED)
    second = await retried(client, first)
    assert (second["retry_of"], second["duplicate"]) == (str(first), False)
    assert await retried(client, first) == {**second, "duplicate": True}
    await ended(client, JobState.FAILED)
    third = await retried(client, first)
    assert (third["retry_of"], third["duplicate"]) == (str(second["id"]), False)
    await ended(client, JobState.FAILED)
    fourth = await retried(client, second["id"])
    assert (fourth["retry_of"], fourth["duplicate"]) == (str(third["id"]), False)
    await ended(client, JobState.SUCCEEDED)
    assert await retried(client, first) == {**fourth, "duplicate": True}


async def test_a_retry_has_the_options_of_the_job_and_those_that_are_given(client: ClientFixture) -> None:
    await client.agent.open("default", 5)
    first = await client.cluster.submit(
        resize, {"path": "a"}, tags=["x", "y"], metadata={"who": "me"}, timeout=7, max_attempts=4, priority="critical"
    )
    await ended(client, JobState.FAILED)
    view = await (await client.cluster.retry(first)).get()
    assert (view.arguments, view.tags, view.priority) == ({"path": "a"}, ("x", "y"), Priority.CRITICAL)
    assert view.metadata == {"who": "me", "retry_of": str(first)}
    assert (view.headers.timeout_seconds, view.headers.max_attempts) == (7.0, 4)

    other = await client.cluster.submit(resize, {"path": "a"}, tags=["x"], metadata={"who": "me"})
    await ended(client, JobState.FAILED)
    receipt = await client.cluster.retry(
        other, {"path": "b", "width": 2}, tags=["z"], metadata={"who": "you"}, after=3600, lane="payroll"
    )
    view = await receipt.get()
    assert (view.arguments, view.tags, view.lane) == ({"path": "b", "width": 2}, ("z",), "payroll")
    assert (view.state, view.metadata) == (JobState.HELD, {"who": "you", "retry_of": str(other)})


@pytest.mark.parametrize(
    ("name", "value", "stored"),
    [("texts.parse", [1, 2], b'{"value":"[1,2]"}'), ("texts.decode", b"a", b'{"value":"YQ=="}')],
)
async def test_a_retry_has_the_stored_arguments_whether_its_program_declares_the_handler_or_not(
    client: ClientFixture, open_cluster: OpenCluster, name: str, value: object, stored: bytes
) -> None:
    await client.agent.start(models)
    declaring = await open_cluster(handlers=models)
    first = await declaring.submit(name, {"value": value})
    assert (await first.get()).arguments_json == stored
    await ended(client, JobState.FAILED)
    second = await declaring.retry(first)
    assert (await second.get()).arguments_json == stored
    by_name = await (await open_cluster(handlers=Handlers())).retry(first)
    assert (by_name.id, by_name.duplicate) == (second.id, True)


async def test_stored_arguments_that_fit_no_longer_are_refused(
    client: ClientFixture, open_cluster: OpenCluster
) -> None:
    first = await client.cluster.submit(resize, {"path": "a" * 2000})
    await ended(client, JobState.FAILED)
    before = await client.rows()
    later = Handlers()

    @later.job(name="images.resize")
    async def resize_later(source: str) -> None: ...

    with pytest.raises(InvalidArguments, match="missing argument 'source'"):
        await (await open_cluster(handlers=later)).retry(first)
    smaller = replace(client.settings, limits=replace(client.settings.limits, args_bytes=1024))
    with pytest.raises(InvalidArguments, match="the limit is 1024"):
        await (await open_cluster(settings=smaller)).retry(first)
    assert await client.rows() == before


async def test_only_what_ended_without_success_is_retried(client: ClientFixture) -> None:
    waiting = await client.cluster.submit(resize, {"path": "a"}, after=3600)
    with pytest.raises(Conflict, match=r"is HELD .*only what FAILED"):
        await client.cluster.retry(waiting)
    await waiting.cancel()
    assert not (await client.cluster.retry(waiting)).duplicate
    succeeded = await client.cluster.submit(resize, {"path": "a"})
    await ended(client, JobState.SUCCEEDED)
    with pytest.raises(Conflict, match="is SUCCEEDED"):
        await client.cluster.retry(succeeded)
    with pytest.raises(NotFound, match="there is no job"):
        await client.cluster.retry(new_id())


async def test_a_retry_that_cannot_be_stores_nothing(client: ClientFixture) -> None:
    first = await client.cluster.submit(resize, {"path": "a"})
    await ended(client, JobState.FAILED)
    before = await client.rows()
    for options in ({"idempotency_key": "k"}, {"job_id": new_id()}, {"connection": object()}):
        given: Any = options
        with pytest.raises(InputError, match="a retry takes no"):
            await client.cluster.retry(first, **given)
    with pytest.raises(InvalidArguments, match="missing argument 'path'"):
        await client.cluster.retry(first, {"width": 3})
    with pytest.raises(InputError, match="'metadata' must be a mapping"):
        await client.cluster.retry(first, metadata="no")  # type: ignore[arg-type]
    assert await client.rows() == before
    second = await client.cluster.retry(first)
    with pytest.raises(Conflict, match=f"retried with other arguments: .*{second}"):
        await client.cluster.retry(first, {"path": "other"})
    assert (await client.rows()).keys() == before.keys() | {second.id_bytes}
