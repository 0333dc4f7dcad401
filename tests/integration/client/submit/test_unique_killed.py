"""Racers of one unique key that are killed at any moment: one job lives, and the key is never stuck."""

from __future__ import annotations

import asyncio
import random
import sys

import pytest

from jobmaster import SubmitAnswer, Unique
from tests.integration.client.fixture import ClientFixture, resize
from tests.support.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.slow

RACER = """
import asyncio, sys
from jobmaster import Unique
from jobmaster.client.cluster import Cluster
from jobmaster.master.master import Master
from jobmaster.settings.model import MasterSettings
from tests.integration.client.fixture import handlers, resize, settings_for

async def main(dsn, schema, cluster):
    settings = settings_for(cluster, {"default": "redis://127.0.0.1:1"})
    master = await Master.connect(dsn=dsn, schema=schema, settings=MasterSettings(), application_name="racer")
    cluster = Cluster(settings, master, {}, handlers=handlers)
    print("ready", flush=True)
    number = 0
    while True:
        rule = Unique(key=f"k{number % 3}", on_conflict=("existing", "replace")[number % 2])
        receipt = await cluster.submit(resize, {"path": "a"}, unique=rule, after=600)
        print(receipt.answer.value, flush=True)
        number += 1

asyncio.run(main(*sys.argv[1:]))
"""


async def racer(client: ClientFixture) -> asyncio.subprocess.Process:
    """A process that submits until it is killed."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", RACER, client.dsn, client.settings.schema_name(), client.settings.cluster),
        stdout=asyncio.subprocess.PIPE,
    )


async def lines(process: asyncio.subprocess.Process, count: int) -> list[str]:
    """Its next lines."""
    assert process.stdout is not None
    stream = process.stdout
    return [
        (await asyncio.wait_for(stream.readline(), PATIENCE_SECONDS)).decode().strip() for _ in range(count)
    ]  # fmt: skip


async def test_racers_that_are_killed_leave_one_job_of_each_key_and_no_key_that_is_stuck(client: ClientFixture) -> None:
    chance = random.Random(7)
    for _ in range(2):
        racers = await asyncio.gather(*(racer(client) for _ in range(3)))
        try:
            assert [await lines(one, 1) for one in racers] == [["ready"]] * 3
            for one in racers:
                await lines(one, chance.randint(3, 40))
        finally:
            for one in racers:
                one.kill()
            await asyncio.gather(*(one.wait() for one in racers))
    connection = await client.connect()
    live = await connection.fetch(
        "SELECT convert_from(headers, 'UTF8')::json ->> 'unique_key' AS key, count(*) AS jobs FROM job"
        " WHERE state = 'HELD' GROUP BY 1 ORDER BY 1"
    )
    held = await connection.fetch(
        "SELECT u.key, j.state FROM unique_key u JOIN job j ON j.id = u.job_id ORDER BY u.key"
    )
    await connection.close()
    assert [tuple(row) for row in live] == [("k0", 1), ("k1", 1), ("k2", 1)]
    assert [tuple(row) for row in held] == [("k0", "HELD"), ("k1", "HELD"), ("k2", "HELD")]
    again = await client.cluster.submit(
        resize, {"path": "a"}, unique=Unique(key="k0", on_conflict="replace"), after=600
    )
    assert again.answer is SubmitAnswer.REPLACED
