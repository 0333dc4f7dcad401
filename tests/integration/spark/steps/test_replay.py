"""Jobs that failed run again: those of the master and those of the lake, each once."""

from __future__ import annotations

import pytest

from jobmaster.model.errors import Refused
from tests.integration.spark.steps.conftest import SeededCluster

pytestmark = pytest.mark.slow
ROWS = 400
AGAIN = {"allowUnregistered": "true", "lane": "default"}


def replayed(seeded: SeededCluster, **choice: str) -> int:
    """Jobs that a replay without a batch has inserted."""
    from jobmaster.pipeline.steps.submit import replay

    summary = replay(seeded.run(), choice, None, AGAIN).summary
    assert summary["rejected"] == 0
    return int(summary["inserted"])


def test_a_replay_has_the_jobs_of_the_lake_and_the_next_one_only_what_has_failed_since(seeded: SeededCluster) -> None:
    from jobmaster.pipeline.steps.archive import archive

    seeded.fill_days(3, rows=ROWS)
    seeded.execute("UPDATE job SET lane = 'default'")  # no agent serves another one here
    in_lake = seeded.value("SELECT count(*) FROM job WHERE state = 'FAILED'")
    archive(seeded.run(), 2.0, keep=False)
    assert seeded.value("SELECT count(*) FROM job") == 0
    seeded.fill_days(0, rows=ROWS, rate=0.001)
    seeded.execute("UPDATE job SET lane = 'default'")
    assert in_lake
    # The range of yesterday is archived, too, and ends at midnight.
    today = str(seeded.value("SELECT date_trunc('day', clock_timestamp(), 'UTC') + interval '1 ms'"))
    seeded.execute(f"DELETE FROM job WHERE state = 'FAILED' AND uuid_moment(id) < '{today}'")
    in_master = seeded.value("SELECT count(*) FROM job WHERE state = 'FAILED'")
    assert in_master

    assert replayed(seeded, since=today) == in_master
    assert replayed(seeded) == in_lake, "those of today run already"
    assert replayed(seeded) == 0
    new = "state = 'HELD' AND convert_from(headers, 'UTF8') LIKE '%replay_of%'"
    assert seeded.value(f"SELECT count(*) FROM job WHERE {new}") == in_lake + in_master
    failed = f"""UPDATE job SET state = 'FAILED', error = '{{}}', bucket_id = gen_random_uuid(), bucket_epoch = 1
                 WHERE id IN (SELECT id FROM job WHERE {new} LIMIT 2)"""
    seeded.execute(failed)
    assert replayed(seeded) == 2, "a replay that fails is a failed job"
    seeded.lake = seeded.lake.with_name("another lake")
    assert replayed(seeded, since=today) == 0, "the lake is not needed"
    with pytest.raises(Refused, match="give --lake"):
        replayed(seeded)
