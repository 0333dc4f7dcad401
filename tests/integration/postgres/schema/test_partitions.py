"""Ranges of ids: made ahead, made on demand, retired whole; nothing comes back below the floor."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from jobmaster.clock import new_id
from jobmaster.doctor.checks import master_findings
from jobmaster.doctor.findings import CheckStatus, Finding
from jobmaster.master.history.archive import Archive
from jobmaster.master.master import Master
from jobmaster.master.reports import Reader
from jobmaster.model.errors import Refused
from jobmaster.settings.model import ClusterSettings, MasterSettings
from tests.integration.postgres.fixture import ERROR, SCHEMA, MasterFixture, final_row, hold_row, new_job, uuids


async def _ranges(db: MasterFixture, parent: str = "job") -> list[tuple[str, UUID | None, UUID]]:
    return [tuple(row) for row in await db.sql.fetch("SELECT * FROM partitions_of($1)", parent)]


def _id_at(ms: int) -> bytes:
    return ms.to_bytes(6, "big") + new_id()[6:]


async def _now_ms(db: MasterFixture) -> int:
    return int(await db.sql.fetchval("SELECT to_us(clock_timestamp()) / 1000"))


async def test_the_first_migration_leaves_no_gap_from_yesterday_to_a_week_ahead(fresh: MasterFixture) -> None:
    for parent in ("job", "attempt"):
        ranges = await _ranges(fresh, parent)
        assert ranges[0][:2] == (f"{parent}_attic", None)
        assert [lower for _, lower, _ in ranges[1:]] == [upper for _, _, upper in ranges[:-1]], "no gap, no overlap"
    now = await _now_ms(fresh)
    assert ranges[0][2].bytes[:6] <= (now - 86_400_000).to_bytes(6, "big")
    assert ranges[-1][2].bytes[:6] > (now + 7 * 86_400_000).to_bytes(6, "big")


async def test_partitions_are_made_ahead_once(fresh: MasterFixture) -> None:
    made = await fresh.master.maintenance.ensure_partitions("day", 9)
    assert len(made) == 2
    assert await fresh.master.maintenance.ensure_partitions("day", 9) == []
    assert [name for name, _, _ in await _ranges(fresh)][-2:] == made


async def test_two_sessions_that_make_partitions_at_once_do_not_conflict(fresh: MasterFixture) -> None:
    second = await Master.connect(dsn=fresh.dsn, schema=SCHEMA, settings=MasterSettings(), application_name="second")
    answers = await asyncio.gather(
        fresh.master.maintenance.ensure_partitions("day", 12), second.maintenance.ensure_partitions("day", 12)
    )
    await second.close()
    assert sorted(map(len, answers)) == [0, 5]


async def test_making_them_does_not_wait_for_open_transactions_on_job(fresh: MasterFixture) -> None:
    """Created in place they would take an exclusive lock on job and wait for every reader."""
    async with fresh.sql.transaction():
        await fresh.sql.fetchval("SELECT count(*) FROM job")
        await fresh.sql.execute("UPDATE job SET ran_us = 1")
        assert len(await fresh.master.maintenance.ensure_partitions("day", 8)) == 1


async def test_a_longer_span_begins_where_the_last_range_ended(fresh: MasterFixture) -> None:
    made = await fresh.master.maintenance.ensure_partitions("month", 40)
    ranges = await _ranges(fresh)
    assert all(name.startswith("job_month_") for name in made)
    assert [lower for _, lower, _ in ranges[1:]] == [upper for _, _, upper in ranges[:-1]]
    first_of_month = await fresh.sql.fetchval(
        "SELECT extract(day FROM uuid_moment($1) AT TIME ZONE 'UTC')", ranges[-1][2]
    )
    assert first_of_month == 1


async def test_spans_grow_before_the_limit_of_sixty_four_stops_the_cluster(fresh: MasterFixture) -> None:
    await fresh.master.maintenance.ensure_partitions("day", 60)
    names = [name for name, _, _ in await _ranges(fresh)]
    assert sum(name.startswith("job_week_") for name in names) > 0
    assert len(names) < 64
    with pytest.raises(Refused, match="64 partitions attached"):
        await fresh.master.maintenance.ensure_partitions("day", 3000)
    assert len(await _ranges(fresh)) == len(names), "all or nothing"


async def test_an_unknown_span_is_refused(fresh: MasterFixture) -> None:
    with pytest.raises(Refused, match="a day, a week or a month, not hour"):
        await fresh.master.maintenance.ensure_partitions("hour", 1)


async def test_a_range_that_was_not_made_in_time_is_made_on_demand(fresh: MasterFixture) -> None:
    """The leader was away for a week: the first write makes the range itself."""
    for name, _, _ in (await _ranges(fresh))[3:]:
        await fresh.sql.execute(f"DROP TABLE {name}")
    for name, _, _ in (await _ranges(fresh, "attempt"))[3:]:
        await fresh.sql.execute(f"DROP TABLE {name}")
    tomorrow = _id_at(await _now_ms(fresh) + 86_400_000)
    assert not await fresh.master.outcomes.copy_final([final_row(tomorrow, fresh.fence)])
    assert (await fresh.master.outcomes.record_final([final_row(tomorrow, fresh.fence)])).accepted == {tomorrow}
    assert await fresh.state(tomorrow) == "SUCCEEDED"


async def _retire(db: MasterFixture) -> tuple[str, int] | None:
    """Retire the oldest range, as if its time had come; its name and how many unfinished jobs moved."""
    archive = await Archive.connect(dsn=db.dsn, schema=SCHEMA, settings=MasterSettings())
    try:
        return await archive.detach(datetime.now(UTC) + timedelta(days=1))
    finally:
        await archive.close()


async def test_a_range_retires_whole_and_its_unfinished_jobs_move_to_the_attic(fresh: MasterFixture) -> None:
    yesterday = await _now_ms(fresh) - 86_400_000
    done, held, running, failed = (_id_at(yesterday) for _ in range(4))
    await fresh.master.outcomes.record_final(
        [final_row(done, fresh.fence), final_row(failed, fresh.fence, state="FAILED")]
    )
    await fresh.master.intake.insert_held([new_job(held)])
    await fresh.master.outcomes.hold(fresh.fence, [hold_row(running, error=ERROR)])
    retired = await _retire(fresh)
    assert retired is not None
    name, moved = retired
    assert name.startswith("job_day_")
    assert moved == 2
    assert [await fresh.state(id_) for id_ in (held, running)] == ["HELD", "HELD"]
    assert await fresh.lines(running) == [(1, "failed")], "the attempts of a straggler move with it"
    assert await fresh.state(done) == "SUCCEEDED", "people see it until the range is dropped"
    assert await fresh.sql.fetchval("SELECT count(*) FROM job WHERE id = $1", UUID(bytes=done)) == 0
    kept = await fresh.sql.fetch(f"SELECT id FROM {name} ORDER BY id")
    assert [row["id"] for row in kept] == sorted(uuids([done, failed]))
    ranges = await _ranges(fresh)
    assert ranges[0][2] == ranges[1][1] == await fresh.sql.fetchval("SELECT floor FROM watermark")


async def test_today_is_never_retired(fresh: MasterFixture) -> None:
    await _retire(fresh)
    assert await _retire(fresh) is None


async def test_a_late_copy_of_a_finished_and_retired_job_never_runs_again(fresh: MasterFixture) -> None:
    yesterday = await _now_ms(fresh) - 86_400_000
    done, neighbour = _id_at(yesterday), new_id()
    await fresh.master.outcomes.record_final([final_row(done, fresh.fence)])
    await _retire(fresh)
    late = final_row(done, fresh.fence)
    assert not await fresh.master.outcomes.copy_final([late, final_row(neighbour, fresh.fence)]), "the count is short"
    written = await fresh.master.outcomes.record_final([late, final_row(neighbour, fresh.fence)])
    assert written.accepted == {neighbour}
    assert written.quarantined == {done}
    assert (await fresh.master.outcomes.hold(fresh.fence, [hold_row(done)])).quarantined == {done}
    assert (await fresh.master.intake.insert_held([new_job(done)])).quarantined == {done}
    assert await fresh.sql.fetchval("SELECT count(*) FROM job WHERE id = $1", UUID(bytes=done)) == 0


async def test_a_straggler_in_the_attic_can_still_be_finished(fresh: MasterFixture) -> None:
    job_id = _id_at(await _now_ms(fresh) - 86_400_000)
    await fresh.master.intake.insert_held([new_job(job_id)])
    await _retire(fresh)
    (entry,) = (await fresh.master.onboarding.onboard(fresh.fence, "default", 3, 60.0, 10)).entries
    assert (entry.id, entry.token) == (job_id, 2)
    assert (await fresh.master.outcomes.hold(fresh.fence, [hold_row(job_id, 2, error=ERROR)])).accepted == {job_id}
    assert await fresh.lines(job_id) == [(2, "failed")]
    await fresh.master.onboarding.onboard(fresh.fence, "default", 3, 60.0, 10)
    assert (await fresh.master.outcomes.record_final([final_row(job_id, fresh.fence, 3)])).accepted == {job_id}
    assert await fresh.state(job_id) == "SUCCEEDED"


@pytest.mark.parametrize("table", ["job", "attempt"])
async def test_doctor_prints_the_command_that_attaches_a_partition_detached_by_hand(
    fresh: MasterFixture, table: str
) -> None:
    settings = ClusterSettings(master=MasterSettings(schema=SCHEMA))
    reader = await Reader.connect(dsn=fresh.dsn, schema=SCHEMA)

    async def finding() -> Finding:
        found = {each.name: each for each in await master_findings(settings, reader)}
        return found[f"master.partitions.{table}"]

    day = await fresh.sql.fetchval("SELECT to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYYMMDD')")
    today = f"{table}_day_{day}"
    assert (await finding()).status is CheckStatus.OK
    before = await fresh.sql.fetch("SELECT * FROM partitions_of($1)", table)
    await fresh.sql.execute(f"ALTER TABLE {table} DETACH PARTITION {today}")
    said = await finding()
    assert said.status is CheckStatus.FAIL
    assert said.detail.startswith(f"{today}: exists and is not attached")
    _, _, attach = said.fix.partition("in psql: ")
    await fresh.sql.execute(attach)
    assert await fresh.sql.fetch("SELECT * FROM partitions_of($1)", table) == before
    assert (await finding()).status is CheckStatus.OK
    await reader.close()
