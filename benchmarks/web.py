"""``python -m benchmarks.web``: how long operators wait for a page of a large cluster, and what their looks cost.

The page server is a process of its own, over a master with millions of jobs and a store with a hundred thousand. Every page
is asked for once a round, and rounds are longer than the time for which an answer is given to further viewers, so each figure
is that of a read. Searches for rare values fit the oldest job alone. The map is measured last, with rows of 10,000 buckets
that no agent has.

What viewers cost is measured while the agents are stopped, so that all statements are those of the page server.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click
import httpx

from benchmarks.support.handlers import stamp_and_sleep
from benchmarks.support.large_cluster import RARE, fill_buckets, fill_jobs
from benchmarks.support.measured_cluster import MeasuredCluster, cpu_of, environment, free_port, measured_cluster
from benchmarks.support.report import REPOSITORY, output_options, progress, show
from jobmaster.handlers import Handlers
from jobmaster.wiring import open_cluster

ROUND_SECONDS = 1.2
"""Longer than answers are shared."""
BUCKETS, AGENTS = 10_000, 200
VIEWERS = 50
WATCH_SECONDS_MAX = 600.0
_LOOK_SECONDS = 0.1
_REST_SECONDS = 7.0
"""Longer than the sampler reads on after the last viewer."""
_START_SECONDS = 60.0
_DRAW = Path(__file__).parent / "support" / "draw_map.js"
_SAMPLE = """
SELECT (SELECT id FROM job WHERE state = 'FAILED' ORDER BY id DESC OFFSET 49 LIMIT 1) AS fiftieth,
       ARRAY(SELECT id FROM job WHERE state = 'FAILED' ORDER BY id DESC LIMIT 10) AS failed,
       ARRAY(SELECT id FROM job WHERE state = 'SUCCEEDED' ORDER BY id DESC LIMIT 10) AS succeeded,
       ARRAY(SELECT id FROM job WHERE state = 'HELD' ORDER BY id DESC LIMIT 10) AS held,
       (SELECT error_fingerprint(handler, error) FROM job WHERE state = 'FAILED' ORDER BY id DESC LIMIT 1) AS common,
       (SELECT error_fingerprint(handler, error) FROM job WHERE handler = 'reports.yearly' ORDER BY id LIMIT 1) AS rare
"""
_CALLS = """
SELECT xact_commit + xact_rollback AS calls,
       (SELECT count(*) FROM pg_stat_activity
        WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND query_start > to_timestamp($1)) AS busy
FROM pg_stat_database WHERE datname = current_database()
"""

Times = dict[str, list[float]]


# ------------------------------------------------------------ the cluster and the page server


async def fill(measured: MeasuredCluster, jobs: int, stored: int) -> None:
    """The rows of the master, and jobs that wait in buckets while the slots of the agent are taken."""
    connection = await measured.connect()
    try:
        await fill_jobs(connection, jobs)
    finally:
        await connection.close()
    progress(f"filled {jobs:,} jobs")
    measured.start_agent()
    handlers = Handlers()
    handlers.add(stamp_and_sleep, name="bench.stamp_and_sleep")
    async with await open_cluster(measured.settings, handlers) as cluster:
        rows = ({"sent_us": 0, "seconds": 86_400.0} for _ in range(stored))
        done = await cluster.submit_many(rows, "bench.stamp_and_sleep")
        assert done.submitted == stored, done
    progress(f"{stored:,} jobs lie in the store")


@contextlib.contextmanager
def page_server(measured: MeasuredCluster) -> Iterator[tuple[int, str]]:
    """``jobmaster web`` as a process: its id and its URL."""
    port = free_port()
    command = [sys.executable, "-m", "jobmaster.cli.main", "web", "--port", str(port), "--config", str(measured.config)]
    with (measured.directory / "web.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=REPOSITORY, env=environment(), stderr=log, stdout=log)
        url = f"http://127.0.0.1:{port}"
        try:
            end = time.monotonic() + _START_SECONDS
            while not _answers(url):
                if process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError(f"the page server did not start: {Path(log.name).read_text()}")
                time.sleep(_LOOK_SECONDS)
            yield process.pid, url
        finally:
            process.terminate()
            process.wait(60)


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/live").status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


# ------------------------------------------------------------ pages


async def searches(measured: MeasuredCluster) -> tuple[dict[str, str], list[str]]:
    """Address of each kind of search, and ids of jobs for their pages."""
    connection = await measured.connect()
    try:
        found = await connection.fetchrow(_SAMPLE, timeout=600)
    finally:
        await connection.close()
    assert found is not None
    common = {
        "no filter": "", "state": "state:failed", "held state": "state:held", "handler": "handler:mail.send", "tag": "tag:eu",
        "metadata": "meta.customer:42", "tenant": "tenant:shop-7", "lane and priority": "lane:mail priority:high",
        "created window": "since:72h until:71h", "due window": "due-before:3h", "error type": "error:TimeoutError",
        "error fingerprint": f"error:{found['common']}",
    }  # fmt: skip
    rare = {f"rare {name}": f"{name}:{value}" for name, value in RARE.items()}
    rare["rare error fingerprint"] = f"error:{found['rare']}"
    pages = {name: f"/jobs?q={quote(text)}" for name, text in {**common, **rare}.items()}
    pages["second page"] = f"/jobs?q=state:failed&after={found['fiftieth']}"
    pages["beginning of an id"] = f"/jobs?q={found['failed'][0].hex[:24]}"
    return pages, [str(each) for each in (*found["failed"], *found["succeeded"], *found["held"])]


async def page_times(measured: MeasuredCluster, url: str, metrics: str, rounds: int) -> Times:
    """Milliseconds of every page in every round."""
    pages, jobs = await searches(measured)
    times: Times = {}
    async with httpx.AsyncClient(base_url=url, timeout=60) as browser:
        for number in range(rounds):
            began = time.perf_counter()
            asked = {"overview": "/", **{f"search: {name}": path for name, path in pages.items()}}
            asked["job page"] = f"/jobs/{jobs[number * 7 % len(jobs)]}"
            asked["metrics"] = metrics
            for name, path in asked.items():
                times.setdefault(name, []).append(await _timed(browser, path))
            await asyncio.sleep(max(ROUND_SECONDS - (time.perf_counter() - began), 0.0))
    return times


async def _timed(browser: httpx.AsyncClient, path: str) -> float:
    began = time.perf_counter()
    answer = await browser.get(path)
    took = (time.perf_counter() - began) * 1000
    assert answer.status_code in (httpx.codes.OK, httpx.codes.SEE_OTHER), (path, answer.status_code, answer.text[-500:])
    return took


async def map_times(measured: MeasuredCluster, url: str, rounds: int) -> Times:
    """The page of the map and its data, with many buckets."""
    connection = await measured.connect()
    try:
        await fill_buckets(connection, AGENTS, BUCKETS)
    finally:
        await connection.close()
    times: Times = {}
    async with httpx.AsyncClient(base_url=url, timeout=60) as browser:
        await asyncio.sleep(_REST_SECONDS)
        for name, path in (("map", "/map"), ("map, data", "/stream/samples"), ("overview, many buckets", "/")):
            for _ in range(rounds):
                times.setdefault(name, []).append(await _timed(browser, path))
                await asyncio.sleep(ROUND_SECONDS)
    return times


async def redraws(url: str) -> list[float]:
    """Milliseconds in which the script of the map has drawn 10,000 buckets again; empty without Chromium."""
    path = shutil.which("chromium")
    try:
        from playwright.async_api import async_playwright
    except ImportError:
        path = None
    if path is None:
        return []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = await browser.new_page(viewport={"width": 1280, "height": 860})
        await page.goto(f"{url}/map")
        await page.wait_for_selector("#map:not([hidden])")
        await page.click("#live")  # paused: the cluster would put its own map in the place of this one
        took: list[float] = await page.evaluate(_DRAW.read_text(encoding="utf-8"), BUCKETS)
        await browser.close()
        return took[1:]  # the first one is the whole


# ------------------------------------------------------------ viewers


@contextlib.asynccontextmanager
async def viewers(url: str, count: int) -> AsyncIterator[None]:
    """So many streams that are read; each has sent something."""
    async with httpx.AsyncClient(
        base_url=url, timeout=WATCH_SECONDS_MAX, limits=httpx.Limits(max_connections=None)
    ) as browser:

        async def watch(begun: asyncio.Event) -> None:
            async with browser.stream("GET", "/stream") as answer:
                answer.raise_for_status()
                async for _ in answer.aiter_raw():
                    begun.set()

        begun = [asyncio.Event() for _ in range(count)]
        tasks = [asyncio.create_task(watch(each)) for each in begun]
        try:
            async with asyncio.timeout(WATCH_SECONDS_MAX):
                while not all(each.is_set() for each in begun):
                    for task in tasks:
                        if task.done():
                            await task  # raises what has ended it
                    await asyncio.sleep(0.01)
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def cost_of_viewers(measured: MeasuredCluster, pid: int, url: str, count: int, seconds: float) -> dict[str, Any]:
    """What so many viewers cost: statements a second at the master, and CPU of the page server and of the master."""
    connection = await measured.connect()
    try:
        async with viewers(url, count):
            await asyncio.sleep(_REST_SECONDS if count == 0 else 2.0)
            since, began = time.time(), time.perf_counter()
            [(before, _)] = await connection.fetch(_CALLS, since)
            cpu, master = cpu_of(pid), measured.cpu_seconds()["postgres"]
            await asyncio.sleep(seconds)
            [(after, busy)] = await connection.fetch(_CALLS, since)
            passed = time.perf_counter() - began
            return {
                "viewers": count,
                "statements_per_second": round((after - before - 1) / passed, 1) if busy else 0.0,
                "page_server_cpu": round((cpu_of(pid) - cpu) / passed, 4),
                "master_cpu": round((measured.cpu_seconds()["postgres"] - master) / passed, 4),
            }
    finally:
        await connection.close()


# ------------------------------------------------------------ the report


def help_times(runs: int) -> list[float]:
    """Milliseconds of ``jobmaster --help``."""
    times = []
    for _ in range(runs):
        began = time.perf_counter()
        command = [sys.executable, "-m", "jobmaster.cli.main", "--help"]
        subprocess.run(command, cwd=REPOSITORY, env=environment(), check=True, stdout=subprocess.DEVNULL)
        times.append((time.perf_counter() - began) * 1000)
    return times


def _summary(times: list[float]) -> dict[str, float]:
    ordered = sorted(times)
    p95 = ordered[min(int(len(ordered) * 0.95), len(ordered) - 1)]
    return {"p50_ms": round(ordered[len(ordered) // 2], 1), "p95_ms": round(p95, 1)}


def measure(jobs: int, stored: int, rounds: int, watch_seconds: float) -> dict[str, Any]:
    """Everything on one cluster."""
    port = free_port()
    overrides = {
        "agents": {"default": {"slots": 2}},
        "observability": {"metrics_port": port},
        "web": {"anonymous": ["view", "payload", "traceback"]},
    }
    with measured_cluster(overrides) as measured:
        asyncio.run(fill(measured, jobs, stored))
        with page_server(measured) as (pid, url):
            times = asyncio.run(page_times(measured, url, f"http://127.0.0.1:{port}/metrics", rounds))
            progress("measured the pages")
            times |= asyncio.run(map_times(measured, url, rounds))
            drawn = asyncio.run(redraws(url))
            measured.signal_agents(signal.SIGSTOP)
            costs = [
                asyncio.run(cost_of_viewers(measured, pid, url, count, watch_seconds)) for count in (0, 1, VIEWERS, 0)
            ]
        servers = asyncio.run(measured.described())
    times["jobmaster --help"] = help_times(rounds)
    if drawn:
        times["map, redraw in Chromium"] = drawn
    return {
        "jobs": jobs,
        "in_stores": stored,
        "map_buckets": BUCKETS,
        "rounds": rounds,
        "pages": {name: _summary(each) for name, each in times.items()},
        "viewers": costs,
        "servers": servers,
    }


@click.command()
@click.option("--jobs", default=5_000_000, show_default=True, help="Jobs with a row in the master.")
@click.option("--stored", type=int, help="Jobs that lie in the store.  [default: a fiftieth of --jobs]")
@click.option("--rounds", default=20, show_default=True, help="How often each page is read.")
@click.option("--watch-seconds", default=20.0, show_default=True, help="How long viewers watch.")
@output_options
def main(jobs: int, stored: int | None, rounds: int, watch_seconds: float, as_json: bool, save: bool) -> None:
    """Times of the pages over a large cluster, and the cost of their viewers."""
    found = measure(jobs, jobs // 50 if stored is None else stored, rounds, watch_seconds)
    show("web", found, as_json=as_json, save=save)


if __name__ == "__main__":
    main()
