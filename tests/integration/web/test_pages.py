"""Pages and their forms over a real cluster, without a browser."""

from __future__ import annotations

import asyncio
import re
import shlex
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from html import unescape
from typing import Any, NoReturn
from urllib.parse import parse_qs, quote, urlencode, urlsplit
from uuid import UUID

import httpx
import msgspec
import pytest
from starlette.applications import Starlette

from jobmaster.client.cluster import Cluster
from jobmaster.client.jobs import listing
from jobmaster.client.jobs.listed_job import ListedJob, listed_job
from jobmaster.csv_text import csv_line
from jobmaster.doctor.examination import examine, why
from jobmaster.model.errors import OutcomeUnknown, Unavailable
from jobmaster.rules.access import Role
from jobmaster.settings.model import ClusterSettings, StoreSettings
from jobmaster.web.app import create_app
from jobmaster.web.pages import actions, job_pages, job_search, map_pages, site
from tests.integration.client.change.test_bulk_operations import sql
from tests.integration.client.conftest import OpenCluster
from tests.integration.client.fixture import ClientFixture
from tests.integration.web.test_jobs import acts
from tests.support.patience import PATIENCE_SECONDS, patient
from tests.support.waiting import until
from tests.support.web_callers import WEB, Caller

HOSTILE_NAME = "a \"b\" 'c' d/e?f=%2F#g"


@pytest.fixture
def page_settings(client: ClientFixture) -> ClusterSettings:
    """As those of the cluster, with the address of the master: pages open readers of their own."""
    return msgspec.structs.replace(
        client.settings, master=msgspec.structs.replace(client.settings.master, dsn=client.dsn)
    )


@pytest.fixture
async def app(client: ClientFixture, page_settings: ClusterSettings, open_cluster: OpenCluster) -> Starlette:
    return create_app(await open_cluster(settings=page_settings), WEB)


async def page_of(caller: httpx.AsyncClient, path: str, status: int = 200) -> str:
    answer = await caller.get(path)
    assert answer.status_code == status, answer.text
    return answer.text


async def done_by(caller: httpx.AsyncClient, path: str, **fields: str) -> tuple[str, str]:
    """Path and sentence of the page that a form leads to."""
    answer = await caller.post(path, data=fields)
    assert answer.status_code == 303, answer.text
    place = urlsplit(answer.headers["location"])
    return place.path, parse_qs(place.query)["done"][0]


async def test_a_pause_that_an_agent_has_not_confirmed_is_shown_as_stored(
    operator: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "PAUSE_SECONDS", 0.05)  # the agent of the fixture confirms nothing
    for action in ("pause", "resume"):
        path, said = await done_by(operator, f"/pauses/{action}", kind="tag", value="eu")
        assert path == "/limits"
        assert "is stored, but 1 of 1 agents have not confirmed" in said


async def test_a_schedule_whose_name_has_slashes_quotes_and_spaces_has_a_page_and_actions(
    client: ClientFixture, operator: httpx.AsyncClient
) -> None:
    await client.cluster.schedules.put(HOSTILE_NAME, "0 3 * * *", "pay", {"employee": 1})
    (address,) = re.findall(r'href="(/schedules/[^"]+)"', await page_of(operator, "/schedules"))
    assert "<dt>When</dt>" in await page_of(operator, address)
    path, said = await done_by(operator, f"{address}/pause", reason="audit")
    assert (path, said) == (address, "The schedule is paused.")
    assert (await client.cluster.schedules.get(HOSTILE_NAME)).paused_at is not None
    assert f"{address}/resume" in await page_of(operator, path)


async def test_links_to_a_search_find_names_with_spaces_and_quotes(
    client: ClientFixture, operator: httpx.AsyncClient
) -> None:
    tag = 'o\'neill "x" y'
    receipt = await client.cluster.submit("images.resize", {"path": "a"}, tags=[tag], after=3600.0)
    page = await page_of(operator, f"/jobs/{receipt.id}")
    links = [unescape(each) for each in re.findall(r'href="(/jobs\?q=[^"]+)"', page)]
    searches = [shlex.split(parse_qs(urlsplit(link).query)["q"][0]) for link in links]
    assert searches == [["handler:images.resize"], [f"tag:{tag}"]]
    assert str(receipt.id) in await page_of(operator, links[1])


async def test_a_search_is_downloaded_as_the_command_line_prints_it(
    client: ClientFixture, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In pages, to a bound. Without messages of errors; metadata for those who may see it."""
    monkeypatch.setattr(job_pages, "CSV_PAGE", 2)
    monkeypatch.setattr(job_pages, "CSV_JOBS_MAX", 4)
    made = [
        await client.cluster.submit(
            "images.resize", {"path": "a"}, tags=["=1+1"], metadata={"note": "@x"}, after=3600.0
        )
        for _ in range(5)
    ]
    error = b'{"type":"ValueError","message":"a secret","reason":"error"}'
    await sql(client, "UPDATE job SET error = $2 WHERE id = $1", made[4].id, error)
    operator = await caller(Role.OPERATOR).get("/jobs.csv", params={"q": "handler:images.resize"})
    assert operator.headers["content-type"] == "text/csv; charset=utf-8"
    assert operator.headers["content-disposition"] == 'attachment; filename="jobs.csv"'
    jobs = await client.cluster.jobs(limit=4, handler="images.resize")
    printed = [listed_job(job)._replace(error=None) for job in jobs]
    printed[0] = printed[0]._replace(error={"type": "ValueError", "message": "", "reason": "error"})
    assert [job.id for job in printed] == [str(each.id) for each in made[:0:-1]]
    assert operator.text == "".join(csv_line(each) for each in (ListedJob._fields, *printed))
    viewer = await caller(Role.VIEWER).get("/jobs.csv", params={"q": "handler:images.resize"})
    assert "note" not in viewer.text
    assert "ValueError" in viewer.text
    assert "a secret" not in operator.text + viewer.text
    assert (await caller(Role.VIEWER).get("/jobs.csv", params={"q": "stat:failed"})).status_code == 422
    assert (await caller().get("/jobs.csv")).status_code == 401


async def test_a_table_whose_jobs_are_not_read_in_time_is_no_table(
    client: ClientFixture, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first page is an error page; a later one cuts the response off, so that a part is not taken for the whole."""
    operator = caller(Role.OPERATOR, raises=True)  # a server cuts a response off when the application raises an error
    monkeypatch.setattr(job_pages, "CSV_PAGE", 2)
    for _ in range(3):
        await client.cluster.submit("images.resize", {"path": "a"}, after=3600.0)
    assert len((await page_of(operator, "/jobs.csv")).splitlines()) == 4
    jobs, slow_from = Cluster.jobs, 0

    async def slow(self: Cluster, **given: Any) -> Any:
        nonlocal slow_from
        slow_from -= 1
        if slow_from < 0:
            await asyncio.Event().wait()
        found = await jobs(self, **given)
        monkeypatch.setattr(
            site, "READ_SECONDS", 0.3
        )  # of the next page alone: this one is read, however long it takes
        return found

    monkeypatch.setattr(Cluster, "jobs", slow)
    monkeypatch.setattr(site, "READ_SECONDS", 0.3)
    assert "The cluster cannot be read" in await page_of(operator, "/jobs.csv", 503)
    slow_from = 1
    monkeypatch.setattr(site, "READ_SECONDS", PATIENCE_SECONDS)
    with pytest.raises(RuntimeError) as raised:  # of Starlette: a response has begun already
        await operator.get("/jobs.csv")
    assert isinstance(raised.value.__cause__, Unavailable)


async def test_each_filter_in_force_has_a_link_without_it(client: ClientFixture, operator: httpx.AsyncClient) -> None:
    page = await page_of(operator, "/jobs?" + urlencode({"q": "lane:mail tag:'a b\"<i>' since:2h", "c": "tags"}))
    chips = re.findall(r'<a class="chip busy" href="\?q=([^"]*)" aria-label="Remove ([^"]*)"', page)
    assert [unescape(label) for _, label in chips] == ["lane:mail", 'tag:a b"<i>', "since:2h"]
    left = [parse_qs("q=" + unescape(link)) for link, _ in chips]
    assert [shlex.split(each["q"][0]) for each in left] == [
        ['tag:a b"<i>', "since:2h"],
        ["lane:mail", "since:2h"],
        ["lane:mail", 'tag:a b"<i>'],
    ]
    assert all(each["c"] == ["tags"] for each in left), "the chosen columns stay"


async def test_a_viewer_chooses_the_columns(client: ClientFixture, operator: httpx.AsyncClient) -> None:
    await client.cluster.submit("images.resize", {"path": "a"}, tags=["<eu>"], after=3600.0)
    page = await page_of(operator, "/jobs?c=tags&c=due&c=gone")
    assert re.findall(r"<th[^>]*>([^<]+)</th>", page) == ["Job", "Tags", "Due"]
    assert "&lt;eu&gt;" in page


@pytest.mark.parametrize("search", job_search.VIEWS.values())
async def test_each_view_that_the_page_offers_is_a_search(operator: httpx.AsyncClient, search: str) -> None:
    page = await page_of(operator, "/jobs?" + urlencode({"q": search}))
    assert page.count('aria-current="true"') == 2, "the view and the tab of its state"


async def test_a_caller_sees_the_forms_of_its_scopes_alone(
    client: ClientFixture, viewer: httpx.AsyncClient, operator: httpx.AsyncClient
) -> None:
    receipt = await client.cluster.submit("images.resize", {"path": "a"}, after=3600.0)
    for path in (f"/jobs/{receipt.id}", "/limits"):
        assert 'method="post"' in await page_of(operator, path)
        assert 'method="post"' not in await page_of(viewer, path)


async def test_a_job_is_rescheduled_and_the_change_is_undone_by_a_form(
    client: ClientFixture, operator: httpx.AsyncClient
) -> None:
    job = await client.cluster.submit("images.resize", {"path": "a"}, after=3600.0)
    before = (await client.cluster.get(job)).due_at
    page = f"/jobs/{job.id}"
    path, said = await done_by(operator, f"{page}/reschedule", due="2030-01-31T12:00+01:00")
    assert (path, said) == (page, "The job is due at 2030-01-31 11:00:00 UTC.")
    answer = await operator.post(f"{page}/reschedule", data={"due": "2h"})
    undo = await page_of(operator, answer.headers["location"])
    assert "Undo: due at 2030-01-31 11:00:00.000 UTC again" in re.sub("<[^>]*>", "", undo)
    (was,) = re.findall(r'name="due" value="([^"]+)"', undo)
    await done_by(operator, f"{page}/reschedule", due=was)
    assert (await client.cluster.get(job)).due_at == datetime(2030, 1, 31, 11, tzinfo=UTC) != before
    refused = await operator.post(f"{page}/reschedule", data={"due": "2030-01-31T12:00"})
    assert (refused.status_code, "neither a duration nor a time with its zone" in refused.text) == (422, True)
    for was in ("0001-01-01T00:00:00+14:00", "2h", "x"):
        assert "Undo" not in await page_of(operator, f"{page}?was={quote(was)}")
    assert {("operator@web", "job reschedule", str(job.id))} == set(await acts(client))


async def test_a_change_whose_answer_was_lost_is_shown_as_one_that_may_have_been_made(
    client: ClientFixture, app: Starlette, operator: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await client.cluster.submit("images.resize", {"path": "a"}, after=3600.0)
    new = UUID(int=7)
    cluster: Cluster = app.state.web.cluster

    async def lost(*_: object, **__: object) -> NoReturn:
        raise OutcomeUnknown("host 10.0.0.1 did not answer", id_bytes=[new.bytes])

    monkeypatch.setattr(cluster, "run_now", lost)
    monkeypatch.setattr(cluster, "pause", lost)
    monkeypatch.setattr(cluster, "get", lost)
    for path, fields, place in (
        (f"/jobs/{job.id}/run-now", {}, f"/jobs/{job.id}"),
        ("/pauses/pause", {"kind": "tag", "value": "eu"}, "/limits"),
    ):
        answer = await operator.post(path, data=fields)
        assert answer.status_code == 503
        assert "Whether the change was made is not known" in answer.text
        assert "Look whether it was made before you make it again" in answer.text
        assert f'href="{place}"' in answer.text
        assert f'href="/jobs/{new}"' in answer.text
        assert "10.0.0.1" not in answer.text
    assert "Whether the change was made" not in await page_of(operator, f"/jobs/{job.id}", 503), (
        "a read changes nothing"
    )


async def test_a_search_that_has_looked_back_for_long_says_how_far_and_leads_on(
    client: ClientFixture, viewer: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "READS", 1)
    monkeypatch.setattr(job_pages, "SEARCH_SECONDS", 1e-9)
    old = await client.cluster.submit("images.resize", {"path": "a"}, after=3600.0, tags=["eu"])
    await client.cluster.submit("images.resize", {"path": "a"}, after=3600.0)
    first = await page_of(viewer, "/jobs?q=tag:eu")
    assert "No job fits so far" in first
    assert str(old.id) not in first
    (link,) = re.findall(r'href="(\?[^"]+deep=1)"', first)
    found = await page_of(viewer, f"/jobs{unescape(link)}")
    assert str(old.id) in found
    assert "so far" not in found


async def test_a_bucket_is_frozen_and_unfrozen_by_forms_of_their_scope(
    client: ClientFixture, operator: httpx.AsyncClient, admin: httpx.AsyncClient
) -> None:
    page = f"/buckets/{UUID(bytes=client.agent.buckets['default', 3][0].id)}"
    assert f"{page}/freeze" in await page_of(admin, page)
    assert f"{page}/freeze" not in await page_of(operator, page)
    assert (await operator.post(f"{page}/freeze", data={})).status_code == 403
    assert (await done_by(admin, f"{page}/freeze", reason="charges twice"))[1].startswith("The bucket is frozen")
    assert (await done_by(admin, f"{page}/freeze"))[1].startswith("Nothing was changed")
    frozen = await page_of(admin, page)
    assert "charges twice" in frozen
    assert f"{page}/unfreeze" in frozen
    assert (await done_by(admin, f"{page}/unfreeze"))[1] == "The bucket continues when its owner has read it."
    assert f"{page}/freeze" in await page_of(admin, page)


async def test_an_agent_is_drained_when_the_box_is_ticked(
    client: ClientFixture, operator: httpx.AsyncClient, admin: httpx.AsyncClient
) -> None:
    page = f"/agents/{UUID(bytes=client.agent.id)}"
    assert f"{page}/drain" in await page_of(admin, page)
    assert f"{page}/drain" not in await page_of(operator, page)
    refused = await admin.post(f"{page}/drain", data={})
    assert (refused.status_code, "nothing was changed" in refused.text) == (422, True)
    assert f"{page}/drain" in await page_of(admin, page)
    assert (await done_by(admin, f"{page}/drain", confirm="yes"))[0] == page
    drained = await page_of(admin, page)
    assert "drain requested" in drained
    assert f"{page}/drain" not in drained


async def test_the_count_of_the_bell_is_that_of_the_page_of_problems(viewer: httpx.AsyncClient) -> None:
    count = (await viewer.get("/problems/count")).json()
    page = await page_of(viewer, "/problems")
    assert count["failed"] == page.count('class="card problem bad"')
    assert count["failed"] + count["warned"] == page.count("<dt>What</dt>") > 0


async def test_the_page_of_an_agent_counts_all_of_its_buckets(
    client: ClientFixture, viewer: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(map_pages, "TABLE_ROWS", 1)
    assert "2, 1 of them here" in await page_of(viewer, f"/agents/{UUID(bytes=client.agent.id)}")


async def test_stores_that_do_not_answer_are_examined_at_once_and_named(
    page_settings: ClusterSettings, opened: AsyncExitStack
) -> None:
    """Each answers when all have been asked, so one after the other none would."""
    names = ["a", "b", "c"]
    together = asyncio.Barrier(len(names))

    async def silent(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await together.wait()
        writer.close()

    settings = await with_stores(page_settings, opened, names, silent, patient(5))
    findings = {each.name: each for each in await examine(settings)}
    for name in names:
        assert "no connection within" not in findings[f"store.{name}"].detail
    assert findings["store.default"].name in findings


async def test_an_examination_that_is_cancelled_leaves_no_connection_open(
    page_settings: ClusterSettings, opened: AsyncExitStack
) -> None:
    open_now: set[asyncio.StreamWriter] = set()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_now.add(writer)
        while await reader.read(1000):
            pass
        open_now.discard(writer)
        writer.close()

    settings = await with_stores(page_settings, opened, ["a", "b"], silent, 3600.0)
    task = asyncio.get_running_loop().create_task(examine(settings))
    await until(lambda: len(open_now) == 2, "both stores to be asked")
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    await until(lambda: not open_now, "the end of both connections")


async def with_stores(
    settings: ClusterSettings, opened: AsyncExitStack, names: list[str], answer: object, connect_seconds: float
) -> ClusterSettings:
    """The settings with further stores, behind which this function listens."""
    stores = dict(settings.stores)
    for name in names:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)  # type: ignore[arg-type]
        opened.callback(server.close)
        port = server.sockets[0].getsockname()[1]
        stores[name] = StoreSettings(url=f"redis://127.0.0.1:{port}/0", connect_timeout_seconds=connect_seconds)
    return msgspec.structs.replace(settings, stores=stores)


async def test_every_check_says_why_its_failure_matters(page_settings: ClusterSettings) -> None:
    assert [each.name for each in await examine(page_settings) if not why(each.name)] == []
