"""The ids of a summary are waited for as the bytes that they are."""

from __future__ import annotations

import pytest

from jobmaster.client import bulk
from jobmaster.client.bulk import IdList
from jobmaster.client.jobs.job_refs import watched
from jobmaster.clock import new_id


def test_a_wait_for_a_summary_makes_no_uuid_of_its_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    job_ids = [new_id() for _ in range(3)]
    summary = IdList()
    summary.extend(job_ids)

    def refuse(**_: object) -> None:
        pytest.fail("an object was made for each job")

    monkeypatch.setattr(bulk, "UUID", refuse)
    assert watched(summary) == (job_ids, set())
