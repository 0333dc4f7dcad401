"""The header of every statement is correct: parameters and columns by the server, moves by the transition tables."""

from __future__ import annotations

import re
from importlib import resources
from importlib.resources.abc import Traversable

import pytest

from jobmaster.master.buckets import sources_of
from jobmaster.master.driver.statements import Statement, statement
from jobmaster.model.bucket import BucketState
from jobmaster.model.job import FINAL_STATES, JobState
from jobmaster.specification import archive_transitions, bucket_transitions, job_transitions
from tests.integration.postgres.fixture import MasterFixture
from tests.simulation.master.cluster_statements import ClusterStatements

_REPORTS = "reports/"
"""Reports have a folder and a form of their own."""
_OF_JOBS = (
    "batches/", "changes/", "cluster/", "intake/", "jobs/", "leadership/", "limits/", "maintenance/", "onboarding/",
    "outcomes/", "requests/", "rescue/", "schedules/", "signals/", "uniqueness/", "unserved/", "workflows/",
)  # fmt: skip
"""Folders of statements that move jobs, if they move anything."""
_TYPES = {
    "uuid": "uuid", "text": "text", "boolean": "bool", "smallint": "int2", "integer": "int4", "bigint": "int8",
    "bytea": "bytea", "json": "json", "double precision": "float8", "timestamptz": "timestamptz",
}  # fmt: skip
_TYPE = "|".join(_TYPES)
_IN = re.compile(rf"^\$(\d+) ((?:{_TYPE})(?:\[\])?)(?= |$)")
_OUT = re.compile(rf"(?:^|, )([a-z_]+) ((?:{_TYPE})(?:\[\])?)(?= |,|$)")


def _names() -> list[str]:
    def walk(folder: Traversable, prefix: str) -> list[str]:
        found = []
        for item in folder.iterdir():
            if item.is_dir():
                found += walk(item, f"{prefix}{item.name}/")
            elif item.name.endswith(".sql"):
                found.append(prefix + item.name.removesuffix(".sql"))
        return found

    names = walk(resources.files("jobmaster.master").joinpath("sql"), "")
    return sorted(name for name in names if not name.startswith(_REPORTS))


NAMES = _names()


def _of(found: Statement, key: str) -> list[str]:
    return [text for name, text in found.header if name == key]


def _server_type(text: str) -> str:
    return f"{_TYPES[text[:-2]]}[]" if text.endswith("[]") else _TYPES[text]


SCRIPTS = frozenset({"transactions/forget"})
"""Commands without parameters that go to the server in one message: a round trip for each would be most of an attempt."""


def test_every_statement_has_a_whole_header() -> None:
    for name in NAMES:
        found = statement(name)
        keys = [key for key, _ in found.header]
        assert keys[0] == name.split("/")[1], f"{name}: the first line names the statement"
        for key in ("in", "out", "fence", "index"):
            assert key in keys, f"{name}: -- {key}: is missing"
        if name not in SCRIPTS:
            code = re.sub(r"\$\$.*\$\$", "", re.sub(r"--.*", "", found.body), flags=re.DOTALL)
            assert ";" not in code, f"{name}: one statement a file"


async def test_parameters_and_columns_are_those_of_the_server(db: MasterFixture) -> None:
    for name in NAMES:
        found = statement(name)
        if name in ("schema/create_schema", "schema/drop_schema") or name in SCRIPTS:
            continue
        prepared = await db.sql.prepare(found.text)
        told = [_IN.match(text) for text in _of(found, "in") if text.startswith("$")]
        assert all(told), f"{name}: -- in: $n type meaning"
        expected = [_server_type(match[2]) for match in told if match]
        assert [match[1] for match in told if match] == [str(n + 1) for n in range(len(told))], name
        assert [parameter.name for parameter in prepared.get_parameters()] == expected, name
        out = _of(found, "out")[0]
        columns = [] if out.startswith("nothing") else _OUT.findall(re.sub(r"\([^)]*\)", "", out))
        told_columns = [(column, _server_type(kind)) for column, kind in columns]
        returned = prepared.get_attributes()
        assert out.startswith("nothing") or [(a.name, a.type.name) for a in returned] == told_columns, name


def _moves(name: str) -> list[tuple[list[str], list[str]]]:
    """Each line of moves: the states before, and those after."""
    moves = [line.split(" -> ") for line in _of(statement(name), "move") if " -> " in line]
    return [(before.split("|"), after.split("|")) for before, after in moves]


def _pairs(name: str) -> set[tuple[str, str]]:
    return {(before, after) for befores, afters in _moves(name) for before in befores for after in afters}


def _job_pairs() -> set[tuple[JobState | None, JobState]]:
    return {(state, after) for (state, _), after in job_transitions.TRANSITIONS.items()}


@pytest.mark.parametrize("name", [n for n in NAMES if n.startswith(_OF_JOBS) and _moves(n)])
def test_every_move_of_a_job_is_in_the_table(name: str) -> None:
    for before, after in _pairs(name):
        pair = (None if before == "none" else JobState(before), JobState(after))
        assert pair in _job_pairs(), f"{name}: {before} -> {after}"
        assert pair[0] not in FINAL_STATES


def test_every_move_of_the_table_has_a_statement() -> None:
    made = set()
    for name in NAMES:
        if name.startswith(_OF_JOBS):
            made |= _pairs(name)
    asked = {("none" if b is None else str(b), str(a)) for b, a in _job_pairs()}
    assert asked - made == set()


WITHOUT_TWIN = {
    "intake/submit": "programs in SQL submit by it; it inserts as intake/insert_held and signals/hold_waiting do",
    "outcomes/await_confirmation": "no handler of a simulated history asks for a confirmation",
    "requests/confirm": "no handler of a simulated history asks for a confirmation",
}


def test_every_statement_that_moves_jobs_or_buckets_has_a_twin_in_the_simulation() -> None:
    """Ranges of the archive are no part of it."""
    moving = {name for name in NAMES if not name.startswith("archive/") and _moves(name)}
    without = {name for name in moving if not hasattr(ClusterStatements, name.replace("/", "_"))}
    assert without == WITHOUT_TWIN.keys()


@pytest.mark.parametrize("name", [n for n in NAMES if n.startswith("buckets/") and _moves(n)])
def test_every_move_of_a_bucket_is_in_the_table(name: str) -> None:
    (moves,) = _moves(name)
    pairs = {(str(state), str(after)) for (state, _), after in bucket_transitions.TRANSITIONS.items()}
    pairs |= {("none", "ACTIVE"), ("none", "LOST"), ("READY_TO_DELETE", "none")}
    for before in moves[0]:
        assert any((before, after) in pairs for after in moves[1]), f"{name}: from {before}"
    for after in moves[1]:
        assert any((before, after) in pairs for before in moves[0]), f"{name}: to {after}"


def test_ranges_move_by_the_table_and_every_move_of_it_has_a_statement() -> None:
    asked = {
        (str(before or "none").split(".")[-1], str(to)) for (before, _), to in archive_transitions.TRANSITIONS.items()
    }
    made = set()
    for name in NAMES:
        if name.startswith("archive/"):
            made |= _pairs(name)
    assert made == asked


def test_an_owner_moves_its_bucket_by_the_table_and_never_without_a_new_epoch_where_one_is_needed() -> None:
    assert sources_of(BucketState.COMPLETING) == ["ACTIVE"]
    assert sources_of(BucketState.READY_TO_DELETE) == ["COMPLETING"]
    assert sources_of(BucketState.LOST) == ["ACTIVE", "COMPLETING", "DRAINING", "FROZEN"]
    assert sources_of(BucketState.DRAINING) == []
    assert sources_of(BucketState.ACTIVE) == []
