"""The hot statements read what they should: the intended index, and no partition that cannot hold their ids."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from jobmaster.clock import new_id
from jobmaster.master.driver.statements import statement
from jobmaster.model.job import JobState, Priority
from jobmaster.model.job_view import JobFilter
from tests.integration.postgres.fixture import LANE, PRIORITY, MasterFixture, new_job

_Node = dict[str, Any]


def _nodes(plan: _Node) -> list[_Node]:
    return [plan, *(node for child in plan.get("Plans", ()) for node in _nodes(child))]


async def _plan(db: MasterFixture, name: str, *args: object, generic: bool = False) -> list[_Node]:
    """The nodes that were really executed, on one of the master's own connections; rolled back."""
    async with db.master._data._connections.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        if generic:
            await connection.execute("SET LOCAL plan_cache_mode = force_generic_plan")
        text = f"EXPLAIN (ANALYZE, FORMAT JSON, COSTS OFF, TIMING OFF) {statement(name).text}"
        rows = await connection.fetch(text, *args)
        await transaction.rollback()
    return [node for node in _nodes(json.loads(rows[0][0])[0]["Plan"]) if node.get("Actual Loops", 1)]


def _scans(nodes: list[_Node], table: str = "job_day") -> set[tuple[str, str]]:
    """``(partition, index or node type)`` of every executed scan of a partition."""
    return {
        (node["Relation Name"], str(node.get("Index Name") or node["Node Type"]).removeprefix(node["Relation Name"]))
        for node in nodes
        if str(node.get("Relation Name", "")).startswith(table) and "Scan" in node["Node Type"]
    }


EXPIRES_INDEX = "_state_expires_at_idx"
"""``job_expires``."""


@pytest.fixture
async def filled(db: MasterFixture) -> MasterFixture:
    """Enough rows that a sequential scan would be a mistake, and statistics from when the table was empty."""
    for _ in range(10):
        await db.master.intake.insert_held([new_job(new_id()) for _ in range(1000)])
    return db


@pytest.mark.parametrize("analysed", [False, True])
async def test_onboarding_reads_the_due_index_and_updates_by_key(filled: MasterFixture, analysed: bool) -> None:
    if analysed:
        await filled.sql.execute("ANALYZE job")
    nodes = await _plan(
        filled, "onboarding/onboard", *filled.fence, LANE, PRIORITY, 60.0, 100, 0, None, 10**6, *[None] * 4, False
    )
    used = {index for _, index in _scans(nodes)}
    assert used == {"_lane_priority_due_at_idx", "_pkey"}
    due = [node for node in nodes if str(node.get("Index Name", "")).endswith("_due_at_idx")]
    assert max(node["Actual Rows"] for node in due) <= 100, "no more rows are read than are taken"
    by_key = {table for table, index in _scans(nodes) if index == "_pkey"}
    assert len(by_key) == 1, "each row is looked for in its own partition only"
    assert ["d.id"] in [node.get("Sort Key") for node in nodes], (
        "neighbours in the table are written one after the other"
    )


@pytest.mark.parametrize("generic", [False, True])
async def test_statements_by_id_touch_one_partition(filled: MasterFixture, generic: bool) -> None:
    ids = [new_id() for _ in range(1000)]
    bounds = (min(ids), max(ids))
    bucket, epoch, owner = filled.fence
    cases: dict[str, tuple[object, ...]] = {
        "jobs/peek": (ids, *bounds),
        "queries/states": (ids, *bounds),
        "queries/sent_before": (ids, *bounds, [bucket]),
        "onboarding/release": (bucket, epoch, ids, [2] * 1000, *bounds),
        "queries/get": (ids[0],),
        "queries/ended": (ids[:500], min(ids[:500]), max(ids[:500])),
        "requests/cancel": (ids[0], "test"),
    }
    for name, args in cases.items():
        scans = _scans(await _plan(filled, name, *args, generic=generic))
        assert {index for _, index in scans} == {"_pkey"}, (name, scans)
        assert len({table for table, _ in scans}) == 1, (name, scans)
    assert owner


@pytest.mark.parametrize("generic", [False, True])
@pytest.mark.parametrize("analysed", [False, True])
@pytest.mark.parametrize(
    "filters",
    [
        JobFilter(),
        JobFilter(states=(JobState.FAILED,)),
        JobFilter(handler="h", lane="no-lane", priority=Priority(3), tag="no-tag", metadata={"a": "b"}),
    ],
    ids=["none", "rare state", "all"],
)
async def test_a_step_of_a_list_reads_the_newest_rows_by_key(
    filled: MasterFixture, filters: JobFilter, analysed: bool, generic: bool
) -> None:
    if analysed:
        await filled.sql.execute("ANALYZE job")
    args = (filters.as_json, bytes(16), b"\xff" * 16, 1000, 100, True)
    nodes = await _plan(filled, "queries/list", *args, generic=generic)
    assert {index for _, index in _scans(nodes)} == {"_pkey"}
    read = sum(
        (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
        for node in nodes
        if "job_day" in str(node.get("Relation Name"))
    )
    jobs = 100 if filters == JobFilter() else 1000
    assert read <= 1000 + jobs + 50, "once for the end of the step, once for the jobs; a row more in each partition"


async def test_a_heartbeat_reads_no_job_that_has_no_cancel_request(filled: MasterFixture) -> None:
    await filled.master.onboarding.onboard(filled.fence, LANE, PRIORITY, 60.0, 1000)
    nodes = await _plan(filled, "members/renew", filled.owner, 10.0, None, generic=True)
    scans = _scans(nodes)
    assert {index for _, index in scans} <= {"_bucket_id_cancel_requested_idx"}
    assert sum(node.get("Actual Rows", 0) for node in nodes if "job_day" in str(node.get("Relation Name"))) == 0


async def test_a_sweep_reads_only_what_is_in_flight_in_its_bucket(filled: MasterFixture, rescuer: bytes) -> None:
    await filled.master.onboarding.onboard(filled.fence, LANE, PRIORITY, 60.0, 50)
    await filled.lost()
    taken = await filled.take(rescuer)
    nodes = await _plan(filled, "rescue/sweep", *taken, 10, 3, b"{}", b"{}")
    assert {index for _, index in _scans(nodes)} <= {"_bucket_id_cancel_requested_idx", "_pkey"}


async def test_finding_due_groups_costs_two_probes_a_group(filled: MasterFixture) -> None:
    await filled.master.leadership.acquire(filled.owner, 1, 60.0)
    nodes = await _plan(filled, "leadership/tick", filled.owner, 1, 60.0, 60.0, generic=True)
    assert {index for _, index in _scans(nodes)} <= {"_lane_priority_due_at_idx", EXPIRES_INDEX}
    read = sum(
        node["Actual Rows"] * node["Actual Loops"] for node in nodes if "job_day" in str(node.get("Relation Name"))
    )
    assert read <= 4, "10,000 waiting jobs are not counted"


@pytest.mark.parametrize("analysed", [False, True])
async def test_counting_what_waits_reads_the_due_index_and_no_more_than_its_bound(
    filled: MasterFixture, analysed: bool
) -> None:
    if analysed:
        await filled.sql.execute("ANALYZE job")
    nodes = await _plan(filled, "queries/backlog", 100, generic=True)
    assert {index for _, index in _scans(nodes)} == {"_lane_priority_due_at_idx"}
    read = sum(
        node["Actual Rows"] * node["Actual Loops"] for node in nodes if "job_day" in str(node.get("Relation Name"))
    )
    assert read <= 100 + 5, "of 10,000 waiting jobs"


async def test_jobs_whose_time_has_come_are_found_by_the_index_of_expiries(filled: MasterFixture) -> None:
    for name, args in (
        ("maintenance/reassign_late", (10, 3, b"{}")),
        ("maintenance/expire_held", (10, b"{}")),
        ("maintenance/expire_unconfirmed", (10, b"{}")),
    ):
        nodes = await _plan(filled, name, *args, generic=True)
        assert {index for _, index in _scans(nodes)} <= {EXPIRES_INDEX, "_pkey"}, name


async def test_many_buckets_cost_nothing_when_none_is_lost(filled: MasterFixture, rescuer: bytes) -> None:
    """Every renewal of every agent asks whether there is one, and every idle rescuer."""
    await filled.sql.execute(
        "INSERT INTO bucket (id, store, lane, priority, state, epoch, owner)"
        " SELECT gen_random_uuid(), store, lane, priority, 'ACTIVE', 1, gen_random_uuid()"
        " FROM bucket, generate_series(1, 5000)"
    )
    await filled.sql.execute("ANALYZE bucket")
    for name, args in (
        ("members/renew", (filled.owner, 10.0, None)),
        ("buckets/take_lost", (rescuer, ["default"], [], [])),
    ):
        nodes = [node for node in await _plan(filled, name, *args) if node.get("Relation Name") == "bucket"]
        assert "bucket_lost" in {node.get("Index Name") for node in nodes}, name
        assert sum(node["Actual Rows"] + node.get("Rows Removed by Filter", 0) for node in nodes) < 10, name


@pytest.mark.parametrize("event", ["none", "all agents are gone", "grace is over"])
async def test_undeclared_schedules_are_found_in_a_time_that_grows_with_their_number(
    filled: MasterFixture, event: str
) -> None:
    """Once a minute, in each cluster. Each of 10,000 names is looked up once, not compared with each declared name."""
    await filled.sql.execute(
        "INSERT INTO schedule (name, source, digest, definition, handler, args, priority, lane, expression, zone, overlap,"
        " declared_at, undeclared_since)"
        " SELECT 's' || n, 'code', '', '', 'h', '{}', 3, 'default', '60s', 'UTC', 'skip', now(), $1"
        " FROM generate_series(1, 10000) n",
        None if event != "grace is over" else datetime(2026, 1, 1, tzinfo=UTC),
    )
    if event == "none":
        await filled.sql.execute("UPDATE agent SET schedules = (SELECT array_agg(name) FROM schedule)")
    nodes = await _plan(filled, "schedules/retire_undeclared", 300.0)
    assert [node["Actual Loops"] for node in nodes if node.get("Parent Relationship") == "SubPlan"] == [1], "hashed"
    read = sum(
        (node["Actual Rows"] + node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Join Filter", 0))
        * node["Actual Loops"]
        for node in nodes
    )
    assert read < 20 * 10_000


async def test_no_condition_of_an_index_on_job_calls_a_function_of_the_schema(db: MasterFixture) -> None:
    conditions = await db.sql.fetch(
        "SELECT indexrelid::regclass::text AS name, pg_get_expr(indpred, indrelid) AS condition FROM pg_index"
        " WHERE indrelid = 'job'::regclass AND indpred IS NOT NULL"
    )
    functions = await db.sql.fetch("SELECT proname FROM pg_proc WHERE pronamespace = current_schema()::regnamespace")
    assert conditions
    for row in conditions:  # each would be inlined anew at the beginning of every statement that writes the table
        called = [one["proname"] for one in functions if f"{one['proname']}(" in row["condition"]]
        assert not called, row["name"]
