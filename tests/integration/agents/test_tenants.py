"""An agent over real servers whose bucket and whose lane in the master one tenant has flooded."""

from __future__ import annotations

import asyncio
import time

import pytest

from jobmaster.clock import SystemClock, new_id
from jobmaster.codec import encode_entry, encode_headers
from jobmaster.handlers import Handlers, JobContext
from jobmaster.model.flow.tenant import NO_TENANT
from jobmaster.model.job import Entry, Headers, NewJob
from jobmaster.rules.lease import term
from jobmaster.settings.model import AgentSettings, ClusterSettings
from jobmaster.telemetry import Telemetry
from jobmaster_agents.bucket_worker import BucketWorker
from jobmaster_agents.event_log import EventLog
from jobmaster_agents.state.ownership import OwnedBucket
from tests.integration.agents.fixture import HIGH_WATER, PRIORITY, DrivenCluster, Owner
from tests.support.idle import is_idle
from tests.support.waiting import until

pytestmark = pytest.mark.slow

FLOOD, JOB_SECONDS = 300, 0.01
"""Half of the flood in the bucket takes far longer than the reading of one page of the master's jobs."""
handlers = Handlers()
order: list[str] = []


@handlers.job(name="note")
async def note(ctx: JobContext) -> None:
    order.append(ctx.metadata.get("of", NO_TENANT))
    await asyncio.sleep(JOB_SECONDS)


def headers_of(tenant: str) -> bytes:
    return encode_headers(Headers(tenant=(tenant,), metadata={"of": tenant})) if tenant else b""


async def in_the_master(owner: Owner, tenant: str, count: int, ago: float = 60.0) -> None:
    due_us = int((time.time() - ago) * 1e6)
    jobs = [NewJob(new_id(), PRIORITY, owner.lane, "note", b"{}", headers_of(tenant), due_us) for _ in range(count)]
    await owner.master.intake.insert_held(jobs)


async def in_the_bucket(owner: Owner, tenant: str, count: int) -> None:
    entries = [encode_entry(Entry(new_id(), 1, "note", b"{}", 0, headers_of(tenant))) for _ in range(count)]
    await owner.store.submit(owner.fence.bucket_id, entries, **HIGH_WATER)


async def test_every_tenant_starts_soon_and_every_job_ends_without_a_further_hint(driven: DrivenCluster) -> None:
    owner = await driven.owner()
    owner.ownership.trust(term(SystemClock().boottime(), 600.0))
    order.clear()
    await in_the_master(owner, "flood", FLOOD, ago=900.0)
    await in_the_bucket(owner, "flood", 1)
    await in_the_bucket(owner, "sent-0", 1)  # jobs of a second tenant come: this bucket is contested
    await in_the_bucket(owner, "flood", FLOOD)
    await in_the_master(owner, NO_TENANT, 2)
    for number in range(5):
        await in_the_master(owner, f"held-{number}", 2)
        await in_the_bucket(owner, f"sent-{number}", 2)
    worker = BucketWorker(
        ClusterSettings(), AgentSettings(slots=2, bucket_buffer=20),
        owner.master, owner.store, owner.ownership, handlers, SystemClock(), Telemetry(), EventLog(), "me",
    )  # fmt: skip
    running = asyncio.ensure_future(worker.run())
    worker.open(OwnedBucket(owner.fence, owner.lane, PRIORITY, "default"))
    try:
        await until(lambda: len(order) >= 2 * FLOOD + 24, "every job to start")
        await until(lambda: is_idle(worker) and worker.outcome_writer.acknowledger.idle, "every outcome")
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await worker.aclose()
    assert len(order) == 2 * FLOOD + 24
    ended = await driven.rows("SELECT count(*) AS jobs FROM job WHERE state = 'SUCCEEDED'")
    assert ended[0]["jobs"] == len(order)
    last = {tenant: len(order) - 1 - order[::-1].index(tenant) for tenant in set(order) - {"flood"}}
    assert max(last.values()) < FLOOD / 2, last
