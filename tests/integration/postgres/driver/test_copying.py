"""The binary COPY of outcomes: every column arrives as the guarded statement would have written it."""

from __future__ import annotations

from jobmaster.clock import new_id
from jobmaster.model.job import FinalRow
from tests.integration.postgres.fixture import DUE, ERROR, MasterFixture, final_row

_COLUMNS = (
    "state::text, priority, lane, handler, token, bucket_epoch, attempt, rescues, to_us(due_at) AS due_us, waited_us, "
    "ran_us, args, headers, result, error, cancel_requested, changed_at IS NOT NULL AS dated"
)


def varied(db: MasterFixture) -> list[FinalRow]:
    """Rows that differ in everything a row can differ in."""
    plain = final_row(new_id(), db.fence)
    return [
        plain,
        plain._replace(id=new_id(), waited_us=2**60, ran_us=0, result=None),
        plain._replace(id=new_id(), due_us=DUE, headers=b'{"tags":["a"]}', attempt=7, rescues=2, token=2**31 - 1),
        plain._replace(id=new_id(), due_us=1, lane="z\u00fcrich \U0001f600", handler="x" * 200, priority=5),
        plain._replace(id=new_id(), args=b"x" * 200_000, result=b"y" * 100_000),
        plain._replace(id=new_id(), state="FAILED", result=None, error=ERROR, bucket_epoch=2**62),
        plain._replace(id=new_id(), args=b"\0\xff\\N\t\n", headers=b"", result=b""),
    ]


async def test_a_copied_row_is_the_row_that_the_guarded_statement_writes(db: MasterFixture) -> None:
    copied = varied(db)
    upserted = [row._replace(id=new_id()) for row in copied]
    assert await db.master.outcomes.copy_final(copied[::-1])
    assert len((await db.master.outcomes.record_final(upserted)).accepted) == len(upserted)
    found = []
    for rows in (copied, upserted):
        ids = [row.id.hex() for row in rows]
        query = f"SELECT {_COLUMNS} FROM job JOIN unnest($1::uuid[]) WITH ORDINALITY AS a (id, n) USING (id) ORDER BY n"
        found.append([tuple(row) for row in await db.sql.fetch(query, ids)])
    assert found[0] == found[1]
    assert len(found[0]) == len(copied)


async def test_a_batch_that_goes_out_in_many_pieces_arrives_whole(db: MasterFixture) -> None:
    rows = [final_row(new_id(), db.fence) for _ in range(3001)]
    assert await db.master.outcomes.copy_final(rows)
    assert await db.sql.fetchval("SELECT count(*) FROM job") == 3001


async def test_rows_are_written_in_the_order_of_their_ids(db: MasterFixture) -> None:
    """As by every batch statement: two writers that meet wait for each other, in one order."""
    rows = [final_row(new_id(), db.fence) for _ in range(50)]
    assert await db.master.outcomes.copy_final(rows[::-1])
    written = [row["id"].bytes for row in await db.sql.fetch("SELECT id FROM job ORDER BY tableoid, ctid")]
    assert written == [row.id for row in rows]


async def test_values_that_no_column_can_hold_write_nothing_and_are_left_to_the_guarded_statement(
    db: MasterFixture,
) -> None:
    good = final_row(new_id(), db.fence)
    for bad in (
        good._replace(id=new_id(), token=2**31),
        good._replace(id=new_id(), handler="\ud800"),
        good._replace(id=new_id(), ran_us=2**63),
    ):
        assert not await db.master.outcomes.copy_final([good, bad])
    assert await db.sql.fetchval("SELECT count(*) FROM job") == 0
