"""The operator's log: written by the acts themselves, read by people and by Spark's source."""

from __future__ import annotations

import json
from uuid import UUID

from jobmaster.cli.operator_log import NOTE, note_values, operator_name
from jobmaster.clock import new_id
from jobmaster.master.driver.statements import sql
from jobmaster.master.reports import Reader
from jobmaster.model.job import JobState
from tests.integration.postgres.fixture import SCHEMA, MasterFixture, new_job


async def test_acts_are_read_back_by_subject_actor_and_age(db: MasterFixture) -> None:
    job_id = new_id()
    await db.master.intake.insert_held([new_job(job_id)])
    assert await db.master.requests.cancel(job_id, tombstone=None, actor="ann@host") is JobState.CANCELLED
    await db.master.statements.write(NOTE, *note_values("db retire", {"job_1": {"retired": True}, "job_2": {}}))
    reader = await Reader.connect(dsn=db.dsn, schema=SCHEMA)

    async def found(*filters: object) -> list[tuple[str, str]]:
        return [(row["action"], row["subject"]) for row in await reader.report("operations", *filters)]

    try:
        retired = {("db retire", "job_2"), ("db retire", "job_1")}
        assert await found("job_2", None, None, 10) == [("db retire", "job_2")]
        assert set(await found(None, operator_name(), 3600.0, 10)) == retired
        for actor in ("ann", "ann@host"):
            ((action, subject),) = await found(None, actor, None, 10)
            assert (action, subject.replace("-", "")) == ("job cancel", job_id.hex())
        assert await found(None, "an", None, 10) == [], "a name, not the beginning of it"
        assert len(await found(None, None, None, 2)) == 2
        assert await found(None, None, 0.0, 10) == []
        details = [json.loads(row["detail"]) for row in await reader.report("operations", "job_", None, None, 10)]
        assert {"retired": True} in details
    finally:
        await reader.close()


async def test_the_acts_on_one_job_are_read_by_an_index(db: MasterFixture) -> None:
    subject = str(UUID(bytes=new_id()))
    await db.sql.execute(
        "INSERT INTO operator_log (actor, action, subject)"
        " SELECT 'ann', 'job cancel', 'job ' || n FROM generate_series(1, 5000) n"
    )
    await db.sql.execute("INSERT INTO operator_log (actor, action, subject) VALUES ('ann', 'job run-now', $1)", subject)
    await db.sql.execute("ANALYZE operator_log")
    reader = await Reader.connect(dsn=db.dsn, schema=SCHEMA)
    try:
        assert [row["action"] for row in await reader.report("operations_of", subject, 10)] == ["job run-now"]
    finally:
        await reader.close()
    plan = await db.sql.fetch(
        "EXPLAIN " + sql("reports/operations_of").replace("$1", f"'{subject}'").replace("$2", "10")
    )
    assert "operator_log_subject" in "\n".join(row[0] for row in plan)
