"""A submit of many jobs over HTTP that stops: the answer says which jobs are stored, so that none is submitted twice."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import httpx
import msgspec
import pytest

from jobmaster.client.cluster import Cluster
from jobmaster.codec import ID_AT, decode_json
from jobmaster.model.errors import OutcomeUnknown
from jobmaster.model.job import Entry
from jobmaster.rules.access import Role
from jobmaster.settings.model import Limits
from jobmaster.web.app import create_app
from tests.integration.client.conftest import OpenCluster
from tests.integration.client.fixture import ClientFixture
from tests.integration.web.test_jobs import API, got, posted
from tests.support.web_callers import WEB

CHUNK_JOBS = 10
HIGH_WATER_JOBS = 30


@pytest.fixture
async def small(client: ClientFixture, open_cluster: OpenCluster) -> Cluster:
    """A producer that sends few jobs at once, into buckets that are soon full."""
    stores = {
        "default": msgspec.structs.replace(client.settings.stores["default"], high_water_jobs=HIGH_WATER_JOBS),
    }
    limits = Limits(submit_chunk_jobs=CHUNK_JOBS)
    return await open_cluster(settings=msgspec.structs.replace(client.settings, stores=stores, limits=limits))


@pytest.fixture
def writer(small: Cluster, callers: Any) -> httpx.AsyncClient:
    """An operator of it."""
    made: httpx.AsyncClient = callers(create_app(small, WEB))(Role.OPERATOR)
    return made


def jobs(count: int) -> list[dict[str, Any]]:
    return [{"handler": "images.resize", "args": {"path": str(at)}} for at in range(count)]


def number_of(entry: Entry) -> int:
    arguments: Any = decode_json(entry.args)
    return int(arguments["path"])


async def stored_numbers(client: ClientFixture) -> list[int]:
    """Numbers of the jobs in the buckets."""
    return sorted(number_of(entry) for entry in (await client.waiting()).values())


async def refused(caller: httpx.AsyncClient, path: str, body: Any, status: int) -> tuple[dict[str, Any], httpx.Headers]:
    answer = await caller.post(API + path, json=body)
    assert answer.status_code == status, answer.text
    return answer.json()["error"], answer.headers


async def test_a_bulk_that_full_buckets_stop_names_the_jobs_that_are_not_stored(
    client: ClientFixture, writer: httpx.AsyncClient
) -> None:
    body = {"jobs": jobs(200), "on_full": "raise"}
    error, headers = await refused(writer, "/jobs/bulk", body, 503)
    assert (error["code"], error["submitted"], "job_ids" in error) == ("partly_stored", 2 * HIGH_WATER_JOBS, False)
    assert f"high-water mark; {error['submitted']} of 200 jobs are stored" in error["message"]
    assert "not_stored" in error["hint"]
    assert "Retry-After" not in headers
    full, headers = await refused(writer, "/jobs/bulk", body, 503)
    assert (full["code"], "high-water mark" in full["message"], "submitted" in full) == ("buckets_full", True, False)
    assert int(headers["Retry-After"]) > 0
    assert await stored_numbers(client) == sorted(set(range(200)) - set(error["not_stored"]))
    wrong = jobs(30)
    wrong[25]["args"] = {"path": 3}
    error, _ = await refused(writer, "/jobs/bulk", {"jobs": wrong}, 422)
    assert (error["code"], error["submitted"], error["not_stored"]) == ("partly_stored", 20, [*range(20, 30)])
    assert error["message"].startswith("item 25: ")
    error, _ = await refused(writer, "/jobs/bulk", {"jobs": [*wrong[25:], *jobs(1)]}, 422)
    assert (error["code"], "submitted" in error) == ("invalid_arguments", False)


async def test_a_bulk_whose_answers_are_lost_names_the_jobs_in_doubt(
    client: ClientFixture, writer: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit = client.store.submit
    calls = 0

    async def lost(bucket_id: bytes, items: Any, **options: Any) -> Any:  # as a connection that breaks
        nonlocal calls
        calls += 1
        third = calls >= 3
        answer = await submit(bucket_id, items, **options)
        if third:
            raise OutcomeUnknown("the answer was lost", id_bytes=[item[ID_AT] for item in items])
        return answer

    monkeypatch.setattr(client.store, "submit", lost)
    error, headers = await refused(writer, "/jobs/bulk", {"jobs": jobs(40), "tags": ["eu"]}, 503)
    assert (error["code"], "Retry-After" in headers, len(error["job_ids"])) == (
        "partly_stored", False, len(error["unknown"]),
    )  # fmt: skip
    assert 0 < len(error["unknown"]) < 40
    assert error["submitted"] + len(error["unknown"]) + len(error["not_stored"]) == 40
    # A chunk that finds every bucket avoided, because a call to it failed a moment ago, becomes rows.
    rows = [view.arguments["path"] for view in await client.cluster.jobs(limit=40)]
    there = await client.waiting()
    paths = {str(UUID(bytes=entry.id)): number_of(entry) for entry in there.values()}
    assert dict(zip(error["job_ids"], error["unknown"], strict=True)).items() <= paths.items()
    assert sorted([*paths.values(), *map(int, rows)]) == sorted(set(range(40)) - set(error["not_stored"]))


BATCH = {"name": "night", "jobs": jobs(100), "on_full": "raise"}


async def test_a_batch_that_stops_is_cancelled(
    client: ClientFixture, writer: httpx.AsyncClient, operator: httpx.AsyncClient
) -> None:
    error, headers = await refused(writer, "/batches", BATCH, 503)
    assert (error["code"], error["submitted"], "Retry-After" in headers) == (
        "partly_stored", 2 * HIGH_WATER_JOBS, False,
    )  # fmt: skip
    assert (await got(operator, f"/batches/{error['message'].split('batch ')[1][:36]}"))["state"] != "OPEN"
    assert "look what has become of the batch" in error["hint"]
    assert len(await client.waiting()) == 2 * HIGH_WATER_JOBS


async def test_a_batch_with_a_key_that_stops_goes_on_when_it_is_sent_again(
    client: ClientFixture, writer: httpx.AsyncClient, operator: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    keyed = {**BATCH, "key": "monday"}
    error, headers = await refused(writer, "/batches", keyed, 503)
    assert (error["code"], "Retry-After" in headers) == ("buckets_full", True)
    before = await client.waiting()
    assert len(before) == 2 * HIGH_WATER_JOBS
    monkeypatch.setattr("jobmaster.client.batches.batches.SILENT_SECONDS", 0.05)  # the first producer counts as dead
    made = await posted(operator, "/batches", keyed, 201)
    assert (made["state"], made["size"]) == ("CLOSED", 100)
    rows = {view.id_bytes for view in await client.cluster.jobs(batch=made["id"])}
    assert len(before.keys() | rows | (await client.waiting()).keys()) == 100
