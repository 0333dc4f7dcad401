"""The pages in a real browser: each in light and dark, wide and narrow, without an error in the console."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pytest

from tests.support.waiting import eventually, until
from tests.system.web.conftest import HOSTILE, LIMIT_MS, LINE_BYTES, OPERATOR, Shown

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page, Route

pytestmark = [pytest.mark.slow, pytest.mark.cluster]

REPOSITORY = Path(__file__).parents[3]
CHECKS = (Path(__file__).parent / "checks.js").read_text(encoding="utf-8")
ADDRESSES = (
    "/", "/map", "/agents/{agent}", "/buckets/{bucket}", "/jobs", "/jobs?q=state:failed", "/jobs/{failed}", "/jobs/{running}",
    "/jobs/{hostile}?whole=1", "/jobs?q=stat:failed", "/held", "/failures", "/problems", "/rescues", "/schedules",
    "/schedules/nightly", "/batches", "/batches/{batch}", "/workflows", "/workflows/{workflow}", "/limits",
    "/operations", "/system",
)  # fmt: skip
WIDE, NARROW = {"width": 1280, "height": 860}, {"width": 390, "height": 844}


SLOWER = 4
"""A machine that runs other tests is so much slower than one that draws a map alone (4 to 6 ms there)."""
DRAW_MANY = (REPOSITORY / "benchmarks" / "support" / "draw_map.js").read_text(encoding="utf-8")


NOTE_WRITES = """async () => {
  let writes = 0;
  const observer = new MutationObserver((changes) => { writes += changes.length; });
  observer.observe(document.getElementById("map-note"), { childList: true, characterData: true, subtree: true });
  document.dispatchEvent(new CustomEvent("map", { detail: { seq: 16, at: 16, set: [] } }));
  await new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)));
  return writes;
}"""
"""How often the line above the map is written when the map is drawn again and nothing that it says has changed."""


@asynccontextmanager
async def opened(browser: Browser, url: str, **given: Any) -> AsyncIterator[tuple[Page, list[str]]]:
    """A page, and what its console has said that is an error."""
    context = await browser.new_context(viewport=WIDE, color_scheme="light", **given)  # type: ignore[arg-type]
    context.set_default_timeout(LIMIT_MS)
    page = await context.new_page()
    errors: list[str] = []
    page.on("console", lambda line: errors.append(line.text) if line.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    await page.goto(url)
    yield page, errors
    await context.close()


@pytest.mark.parametrize(
    ("schemes", "sizes"),
    [
        pytest.param(("dark",), (NARROW,), id="dark and narrow"),
        pytest.param(("light", "dark"), (WIDE, NARROW), id="light and dark, wide and narrow", marks=pytest.mark.long),
    ],
)
async def test_every_page_has_contrast_and_room(
    browser: Browser, shown: Shown, schemes: tuple[str, ...], sizes: tuple[Any, ...]
) -> None:
    wrong = {}
    async with opened(browser, shown.url) as (page, errors):
        for address in ADDRESSES:
            await page.goto(shown.url + address.format_map(shown.ids))
            for scheme in schemes:
                await page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
                for size in sizes:
                    await page.set_viewport_size(size)
                    if found := await page.evaluate(CHECKS):
                        wrong[address, scheme, size["width"]] = found
        # A search that cannot be meant is answered with 422, which the console notes.
        assert [error for error in errors if "422" not in error] == []
    assert wrong == {}


async def test_content_of_jobs_is_shown_as_text_whatever_it_is(browser: Browser, shown: Shown) -> None:
    async with opened(browser, f"{shown.url}/jobs/{shown.ids['hostile']}?whole=1") as (page, errors):
        text = await page.inner_text("main")
        assert (await page.title()).startswith("hostile")
        assert await page.locator("main script, main img, main b").count() == 0
        assert HOSTILE.splitlines()[0] in text
        assert text.count("x" * LINE_BYTES) >= 1
        assert errors == []


async def test_pages_are_read_without_scripts(browser: Browser, shown: Shown) -> None:
    async with opened(browser, shown.url, java_script_enabled=False) as (page, _):
        assert "Lanes and priorities" in await page.inner_text("main")
        await page.click("text=Cluster map")
        assert await page.locator("#twin tbody tr").count() == 12
        await page.fill("#search", "handler:reports.nightly")
        await page.press("#search", "Enter")
        await page.click("table.rows tbody a >> nth=0")
        assert "no figures for" in await page.inner_text("#timeline")


async def test_the_map_and_the_overview_follow_the_cluster_without_a_reload(browser: Browser, shown: Shown) -> None:
    async with opened(browser, f"{shown.url}/map") as (page, errors):
        await eventually(lambda: _says(page, "#map-note", "12 buckets, 2 agents"), what="the map")
        await eventually(lambda: _says(page, "#live-text", "live"), what="the stream")

        async def plays() -> bool:
            """There is nothing to watch before the second sample: the button is pressed until there is."""
            if await _says(page, "#map-play", "watch again"):
                await page.click("#map-play")
            return await _says(page, "#map-clock", "UTC")

        await eventually(plays, what="the past")
        await page.goto(shown.url)
        before = await page.inner_text("#overview")
        await eventually(lambda: _changed(page, "#overview", before), what="another sample")
        assert errors == []


async def test_a_second_press_while_the_past_is_read_plays_it_once(browser: Browser, shown: Shown) -> None:
    async with opened(browser, f"{shown.url}/map") as (page, errors):
        asked: list[Route] = []

        async def hold(route: Route) -> None:
            asked.append(route)

        await page.route("**/stream/history", hold)
        await page.click("#map-play")
        await until(lambda: asked, what="the request for the past")
        await page.click("#map-play")
        await page.evaluate("() => new Promise((drawn) => requestAnimationFrame(drawn))")
        await asked[0].continue_()
        await eventually(lambda: _changed(page, "#map-clock", "now"), what="the answer")
        await page.unroute("**/stream/history")
        assert len(asked) == 1
        assert errors == []


async def test_the_page_of_an_agent_or_a_bucket_is_read_again_and_opens_no_stream(
    browser: Browser, shown: Shown
) -> None:
    for name in ("agent", "bucket"):
        async with opened(browser, f"{shown.url}/{name}s/{shown.ids[name]}") as (page, errors):
            await eventually(lambda: _says(page, "#live-text", "live"), what="the live part")
            await page.select_option("#interval", "2")
            async with page.expect_request(page.url):
                pass
            asked: list[str] = []

            async def answered(page: Page = page, asked: list[str] = asked) -> bool:
                """A request is in the list once it was answered."""
                asked[:] = await page.evaluate(
                    "() => performance.getEntriesByType('resource').map((each) => each.name)"
                )
                return f"{shown.url}/problems/count" in asked

            await eventually(answered, what="the number of problems")
            assert [each for each in asked if "/stream" in each] == []
            assert errors == []


async def test_a_map_of_10_000_buckets_is_drawn_within_a_frame(browser: Browser, shown: Shown) -> None:
    async with opened(browser, f"{shown.url}/map") as (page, errors):
        await eventually(lambda: _says(page, "#map-note", "12 buckets"), what="the map")
        await page.click("#live")  # paused: the cluster of the test would put its own map in the place of this one
        took = await page.evaluate(DRAW_MANY, 10_000)
        assert await _says(page, "#map-note", "10000 buckets, 200 agents")
        assert await page.evaluate(NOTE_WRITES) == 0
        assert min(took) < 16 * SLOWER, took  # the others may have waited for a processor
        assert errors == []


async def test_an_operator_changes_things_by_forms_and_the_log_names_the_operator(
    browser: Browser, shown: Shown
) -> None:
    async with opened(browser, shown.operator_url, http_credentials=OPERATOR) as (page, errors):
        await page.goto(f"{shown.operator_url}/jobs/{shown.ids['failed']}")
        await page.click("text=Retry as a new job")
        await page.wait_for_selector("[role=status]")
        assert "this is the new job" in await page.inner_text("[role=status]")
        assert shown.ids["failed"] in await page.inner_text("main")
        await page.goto(f"{shown.operator_url}/schedules/nightly")
        await page.click("button:text('Pause')")
        await page.wait_for_selector("[role=status]")
        assert "ann@web" in await page.inner_text("#facts")
        await page.goto(f"{shown.operator_url}/jobs?q=handler:reports.nightly state:failed")
        await page.click("text=cancel …")
        await page.wait_for_selector(".message.bad")  # a cancel of what has ended cannot be meant
        await page.goto(f"{shown.operator_url}/jobs?q=handler:mail.send state:held")
        await page.click("text=cancel …")
        await page.fill("[name=confirm]", "4")
        await page.click("button.danger")
        await page.wait_for_selector(".message.bad")
        assert "nothing was changed" in await page.inner_text("main")
        await page.go_back()
        await page.fill("[name=confirm]", await page.input_value("[name=eligible]"))
        await page.click("button.danger")
        await eventually(lambda: _says(page, "main", "done"), what="the end of the operation")
        await page.goto(f"{shown.operator_url}/operations")
        assert "ann@web" in await page.inner_text("#list")
        assert [error for error in errors if "401" not in error and "422" not in error] == []


async def test_the_page_of_a_job_follows_it_to_its_end_and_is_read_no_more(browser: Browser, shown: Shown) -> None:
    job = await shown.cluster.submit("index.build", {"gate": str(shown.deployment.directory / "never")})
    await shown.cluster.wait_saved(job)
    address = f"{shown.operator_url}/jobs/{job.id}"
    context = await browser.new_context(http_credentials=OPERATOR)  # type: ignore[arg-type]
    context.set_default_timeout(LIMIT_MS)
    page = await context.new_page()
    await page.clock.install()
    reads: list[str] = []
    page.on("request", lambda request: reads.append(request.url) if request.url == address else None)
    await page.goto(address)
    await page.click("button:text('Cancel')", trial=True)
    await shown.cluster.cancel(job)
    assert await shown.cluster.wait(job)
    await page.clock.run_for(3_000)
    await page.wait_for_selector("button:text('Retry as a new job')")
    assert await page.locator("button:text('Cancel')").count() == 0
    assert "jobmaster job retry" in await page.inner_text("#facts")
    assert not await page.is_visible("#live")
    before = len(reads)
    await page.clock.run_for(60_000)
    await page.evaluate("() => fetch('/live')")
    assert len(reads) == before
    await context.close()


async def test_a_page_has_the_zone_of_its_browser_the_chosen_interval_and_the_number_of_problems(
    browser: Browser, shown: Shown
) -> None:
    address = f"{shown.url}/jobs/{shown.ids['running']}"
    async with opened(browser, address, timezone_id="Europe/Berlin") as (page, errors):
        row = page.locator("#timeline tbody tr >> nth=0")
        shown_time = row.locator("time")
        utc = datetime.fromisoformat(await shown_time.get_attribute("datetime") or "")
        local = utc.astimezone(ZoneInfo("Europe/Berlin"))
        assert (await shown_time.inner_text()) == f"{local:%Y-%m-%d %H:%M:%S.%f}"[:-3]
        assert (await shown_time.get_attribute("title")) == f"{utc:%Y-%m-%d %H:%M:%S.%f}"[:-3] + " UTC"
        assert "Europe/Berlin" in await page.inner_text("#timeline thead")
        await page.wait_for_selector("#bell .count:not([hidden])")
        await page.select_option("#interval", "15")
        await page.goto(f"{shown.url}/limits")
        assert await page.input_value("#interval") == "15"
        assert await page.inner_text("#live-text") == "live"
        await page.select_option("#interval", "off")
        await page.reload()
        assert (await page.input_value("#interval"), await page.inner_text("#live-text")) == ("off", "paused")
        await page.click("#live")
        assert await page.input_value("#interval") == "15"

        async def agree() -> bool:
            """Of one moment: between two reads the cluster may have got a problem, or lost one."""
            await page.goto(f"{shown.url}/limits")
            await page.wait_for_selector("#bell .count:not([hidden])")
            problems = int(await page.inner_text("#bell .count"))
            await page.click("#bell")
            return await page.locator("section.problem:not(.good)").count() == problems

        await eventually(agree, what="as many problems as the bell has named")
        assert errors == []


async def test_charts_and_details_have_the_zone_of_the_browser(browser: Browser, shown: Shown) -> None:
    """The axis of the held jobs, and the due time that a line of a timeline names."""
    zone = ZoneInfo("Australia/Adelaide")  # half an hour beside others: no minute is right by chance
    held = await shown.cluster.submit("hostile", {"text": "later"}, after=1200.0)
    async with opened(browser, f"{shown.url}/held", timezone_id="Australia/Adelaide") as (page, errors):
        assert await page.inner_text("#minutes .note") == "Australia/Adelaide"
        marks = page.locator("#minutes text[data-minute]")

        async def drawn() -> bool:  # a count of the held jobs is shown for a while
            await page.reload()
            return await marks.count() == 6

        await eventually(drawn, what="the chart of the next hour", pause=0.5)
        for number in range(6):
            at = datetime.fromisoformat(await marks.nth(number).get_attribute("data-minute") or "")
            assert await marks.nth(number).text_content() == f"{at.astimezone(zone):%H:%M}"
        await page.goto(f"{shown.url}/jobs/{held.id}")
        due = page.locator("#timeline tbody tr:last-child td:last-child time")
        at = datetime.fromisoformat(await due.get_attribute("datetime") or "")
        assert await due.inner_text() == f"{at.astimezone(zone):%Y-%m-%d %H:%M:%S.%f}"[:-3]
        assert errors == []


async def test_a_browser_keeps_named_searches_whatever_is_in_their_names(browser: Browser, shown: Shown) -> None:
    name = "<img src=x onerror=alert(1)>\u202egnp"
    async with opened(browser, f"{shown.url}/jobs?q=handler:mail.send+tag:eu&c=state&c=tags") as (page, errors):
        await page.fill("#views input", name)
        await page.click("#views button:has-text('Save view')")
        await page.goto(f"{shown.url}/jobs?q=state:failed")
        kept = page.locator("#views .own a")
        assert await kept.inner_text() == name
        await kept.click()
        assert await page.input_value("#search") == "handler:mail.send tag:eu"
        assert await page.locator("#list thead th").count() == 3
        assert await page.get_attribute("#views .own a", "aria-current") == "true"
        await page.click("#chips a[aria-label='Remove tag:eu']")
        assert (await page.input_value("#search"), await page.locator("#chips li").count()) == ("handler:mail.send", 1)
        async with page.expect_download() as started:
            await page.click("#csv")
        lines = Path(await (await started.value).path()).read_text(encoding="utf-8").splitlines()
        assert lines[0].startswith("id,state,handler,")
        assert {line.split(",")[2] for line in lines[1:]} == {"mail.send"}
        # What other programs of this address have stored is no view.
        await page.evaluate("key => localStorage.setItem(key, '[7, {\"name\": 1}, null]')", "jobmaster.views.")
        await page.reload()
        assert await page.locator("#views .own").count() == 0
        await page.fill("#views input", "mine")
        await page.click("#views button:has-text('Save view')")
        await page.click("#views button[aria-label='Forget the view mine']")
        await page.reload()
        assert await page.locator("#views .own").count() == 0
        assert errors == []


async def test_the_views_and_the_columns_of_a_search_work_without_scripts(browser: Browser, shown: Shown) -> None:
    async with opened(browser, f"{shown.url}/jobs", java_script_enabled=False) as (page, _):
        await page.click("#views a:has-text('failed, last day')")
        assert await page.input_value("#search") == "state:failed since:1d"
        await page.click("#columns summary")
        await page.uncheck("#columns input[value=lane], #columns input[value=priority]")
        await page.click("#columns button")
        assert "Priority, lane" not in await page.inner_text("#list thead")
        assert await page.input_value("#search") == "state:failed since:1d"


async def test_who_may_only_read_sees_no_form(browser: Browser, shown: Shown) -> None:
    async with opened(browser, shown.url) as (page, _):
        for address in (
            "/jobs/{failed}",
            "/schedules/nightly",
            "/limits",
            "/jobs?q=state:failed",
            "/workflows/{workflow}",
        ):
            await page.goto(shown.url + address.format_map(shown.ids))
            assert await page.locator("form[method=post]").count() == 0


async def test_keys_lead_through_the_pages(browser: Browser, shown: Shown) -> None:
    async with opened(browser, shown.url) as (page, errors):
        await page.clock.set_fixed_time(datetime.now(UTC))  # the second key has to come within 1.5 s
        await page.keyboard.press("g")
        await page.keyboard.press("j")
        await page.wait_for_url("**/jobs")
        await page.keyboard.press("j")
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/jobs/*")
        await page.keyboard.press("/")
        assert await page.evaluate("() => document.activeElement.id") == "search"
        await page.keyboard.press("Escape")
        await page.keyboard.press("d")
        assert await page.evaluate("() => document.documentElement.dataset.theme") == "light"
        await page.keyboard.press("?")
        assert await page.locator("dialog[open]").count() == 1
        assert errors == []


async def _says(page: Page, place: str, text: str) -> bool:
    return text in await page.inner_text(place)


async def _changed(page: Page, place: str, before: str) -> bool:
    return await page.inner_text(place) != before
