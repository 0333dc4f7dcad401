"""Buckets that are too many complete, however long a server is away meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from jobmaster.model.job import Priority
from jobmaster.settings.model import AgentSettings, BucketCounts
from jobmaster_agents.buckets import provisioner
from jobmaster_agents.buckets.provisioner import BucketProvisioner
from jobmaster_agents.event_log import EventLog
from tests.support.bucket_worker_fixture import WorkerHarness
from tests.unit.agents.buckets.test_graceful_shutdown import handlers

AWAY = 12
"""Tries that meet a master that is away, each for as long as a completion may take."""


async def test_a_bucket_that_is_not_wanted_is_tried_until_it_is_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provisioner, "REPLACE_SECONDS", 0.0)
    async with WorkerHarness(handlers, AgentSettings()) as harness:
        bucket = harness.bucket()
        complete, tries = harness.bucket_worker.complete, 0

        async def completed(ids: Sequence[bytes], grace_seconds: float, reason: str) -> list[bytes]:
            nonlocal tries
            tries += 1
            if tries <= AWAY:
                bucket.closed = True  # so far it came
                return list(ids)
            return await complete(ids, grace_seconds, reason)

        monkeypatch.setattr(harness.bucket_worker, "complete", completed)
        none = {each.label: 0 for each in Priority}
        own = AgentSettings(buckets=BucketCounts(**none), lanes={bucket.lane: BucketCounts(**none)})
        ports = cast("Any", None)
        count = BucketProvisioner(
            own, ports, ports, bucket.store, harness.ownership, harness.bucket_worker, lambda: False, EventLog()
        )
        await count._reconcile()
        assert tries == AWAY + 1
        assert harness.ownership.buckets == {}
