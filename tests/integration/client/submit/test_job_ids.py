"""Ids as programs see them: a UUID, which JSON and databases take; every function that names a job takes each form of it."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec
import pytest

import jobmaster
from jobmaster.model.errors import InputError, OutcomeUnknown
from jobmaster.model.job import JobState
from tests.integration.client.fixture import ClientFixture, resize
from tests.support.patience import PATIENCE_SECONDS


async def test_a_receipt_and_a_view_show_the_id_as_a_uuid(client: ClientFixture) -> None:
    receipt = await client.cluster.submit(resize, {"path": "a"}, after=3600)
    view = await receipt.get()
    assert type(receipt.id) is UUID
    assert view.id == receipt.id
    assert receipt.id.version == 7
    assert receipt.id_bytes == view.id_bytes == receipt.id.bytes
    assert msgspec.json.encode({"job": receipt.id}) == b'{"job":"%s"}' % str(receipt).encode()


async def test_each_form_of_an_id_names_the_job(client: ClientFixture) -> None:
    cluster = client.cluster
    receipt = await cluster.submit(resize, {"path": "a"}, after=3600)
    view = await receipt.get()
    forms: list[Any] = [receipt, view, receipt.id, str(receipt.id), receipt.id.hex, receipt.id_bytes]
    for form in forms:
        assert (await cluster.get(form)).id == receipt.id, form
        await cluster.wait_saved(form, timeout=PATIENCE_SECONDS)
    for form in forms:
        assert await cluster.cancel(form) is JobState.CANCELLED, form
        assert await cluster.wait(form, timeout=PATIENCE_SECONDS) is JobState.CANCELLED
    assert await cluster.wait_all(forms, timeout=PATIENCE_SECONDS) == {receipt.id: JobState.CANCELLED}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("nonsense", "'nonsense' is not the id of a job"),
        (b"short", "an id has 16 bytes, not 5"),
        (7, "named by a receipt, a view or an id, not by int"),
        (None, "not by NoneType"),
    ],
)
async def test_anything_else_is_one_clear_error(client: ClientFixture, wrong: Any, words: str) -> None:
    cluster = client.cluster
    for ask in (cluster.get, cluster.state, cluster.wait, cluster.wait_saved, cluster.result, cluster.cancel):
        with pytest.raises(InputError, match=words):
            await ask(wrong)
    with pytest.raises(InputError, match=words):
        await cluster.wait_all([wrong])


async def test_an_id_made_by_the_caller_is_a_uuid_as_well(client: ClientFixture) -> None:
    mine = jobmaster.new_job_id()
    assert type(mine) is UUID
    receipt = await client.cluster.submit(resize, {"path": "a"}, job_id=mine)
    again = await client.cluster.submit(resize, {"path": "a"}, job_id=str(mine))
    assert (receipt.id, again.id, again.duplicate) == (mine, mine, True)


async def test_a_bulk_keeps_sixteen_bytes_and_shows_uuids(client: ClientFixture) -> None:
    summary = await client.cluster.submit_many([{"path": str(i)} for i in range(10)], resize)
    ids = summary.ids
    assert {type(id_) for id_ in ids} == {UUID}
    assert [id_.bytes for id_ in ids] == list(ids.as_bytes())
    assert [ids[0], *ids[1:9], ids[-1]] == list(ids)
    assert ids[3] in ids
    assert UUID(int=0) not in ids
    with pytest.raises(IndexError):
        ids[10]
    assert (await client.cluster.get(ids[4])).handler == "images.resize"


def test_the_ids_of_an_unknown_outcome_can_be_sent_again() -> None:
    job = jobmaster.new_job_id()
    error = OutcomeUnknown("the answer was lost", id_bytes=[job.bytes])
    assert error.job_ids == (job,)
    assert error.id_bytes == (job.bytes,)
