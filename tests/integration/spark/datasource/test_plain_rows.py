"""Rows as columns are the same jobs as rows one by one. Needs neither Spark nor a server."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import pytest

from jobmaster.model.agent import HandlerSpec
from jobmaster.model.job import Headers, NewJob
from jobmaster.pipeline.datasource.rows.plain_rows import PlainRows
from jobmaster.pipeline.datasource.rows.row_parser import RejectedRow, RowParser, RowRules, batch_id
from jobmaster.settings.model import Limits

SCHEMA = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "width": {"type": "integer"}, "ratio": {"type": "number"}},
    "required": ["path"],
    "additionalProperties": False,
}
ORDERING: dict[str, object] = {"template": "order:{path}", "defaults": {"path": "x"}}
RULES = RowRules(
    as_of_ms=1_800_000_000_000, now_us=10**15, handler="h", priority=None, lane=None, due_us=0, headers=Headers(),
    replay=False, lax=False, allow_unregistered=False, lanes=frozenset({"default", "slow"}), default_lane="default",
    default_priority=3, limits=Limits(args_bytes=300),
    specs={
        "h": HandlerSpec(name="h", schema=SCHEMA),
        "other": HandlerSpec(name="other", schema=SCHEMA, lane="slow"),
        "ordered": HandlerSpec(name="ordered", schema=SCHEMA, ordering=ORDERING),
    },
)  # fmt: skip
ARGS = [
    '{"path":"a"}', '{"path":"a","width":2}', ' {"path" : "ä" , "width" : 2 } ', '{"path":"b"},{"path":"c"}', '{"path":',
    "[]", '{"path":"a","width":2.0}', '{"path":"a","width":"2"}', '{"path":"a","ratio":"nan"}', "{}", None,
    '{"path":"' + "x" * 400 + '"}', '{"path":' + "[" * 140 + "]" * 140 + "}",
]  # fmt: skip
KEYS = ["a", "b", "a", "", None, 'say "no"', "back\\slash", "line\nfeed", "ä€🙂", "k" * 512, "k" * 513, "c", "b"]


def both(rules: RowRules, columns: dict[str, Any]) -> tuple[PlainRows, list[RejectedRow]]:
    """Rows as columns, found to be the rows that are read one by one."""
    import pyarrow as pa

    batch = pa.record_batch(columns)
    found = RowParser(rules).read_plain(batch)
    assert found is not None
    jobs, rejects = RowParser(rules).read(batch)
    first = {job.id: job for job in reversed(jobs)}
    assert found[0].jobs() == sorted(first.values()), "sorted by id, the first of those with the same key"
    assert found[1] == rejects
    return found


@pytest.mark.parametrize("lax", [False, True])
@pytest.mark.parametrize("registered", [False, True])
def test_rows_as_columns_are_the_rows_one_by_one(registered: bool, lax: bool) -> None:
    rules = RULES._replace(lax=lax) if registered else RULES._replace(lax=lax, allow_unregistered=True, specs={})
    rows, rejects = both(rules, {"key": KEYS, "args": ARGS})
    assert (rows.count > 1, len(rejects) > 3) == (True, True)
    rows, rejects = both(rules, {"key": KEYS, "args": ['{"path":"a","width":1}'] * len(KEYS)})
    assert [row.reason for row in rejects] == ["the key is empty"] * 2 + [
        "the key has 513 characters, at most 512 are taken"
    ]
    assert both(rules, {"key": ["x", ""], "args": ["[]"] * 2})[0].count == 0
    assert both(rules, {"key": ["x"] * 3, "args": ['{"path":"a"}'] * 3})[0].count == 1


def test_keys_and_due_times_have_the_types_of_the_columns() -> None:
    import pyarrow as pa

    given = {"args": ['{"path":"a"}'] * 4}
    assert both(RULES, {"key": [7, -1, 7, 2**40], **given})[0].due_us is None
    far = 10**15 + 86_400_000_000 * (RULES.limits.due_ahead_days + 1)
    times = pa.array([None, 5, 10**15 + 60_000_000, far], pa.timestamp("us", "UTC"))
    rows, rejects = both(RULES._replace(due_us=10**15 + 7), {"key": list("abcd"), **given, "due_at": times})
    assert rows.due_us is not None
    assert sorted(rows.due_us) == [0, 10**15 + 7, 10**15 + 60_000_000]
    assert len(rejects) == 1
    texts = ["soon", "2001-09-09T01:47:41Z", "2001-09-10", None]
    assert len(both(RULES, {"key": list("abcd"), **given, "due_at": texts})[1]) == 2
    assert both(RULES._replace(due_us=8), {"key": list("abcd"), **given})[0].jobs()[0].due_us == 8


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("headers", ['{"tags":["a"]}', None]),
        ("headers", ["", None]),
        ("lane", ["slow", None]),
        ("priority", [None, "high"]),
        ("handler", ["h", "other"]),
        ("handler", ["ordered", "ordered"]),
        ("handler", ["missing", "missing"]),
    ],
)
def test_rows_that_differ_in_more_are_left_to_be_read_one_by_one(column: str, values: Sequence[str | None]) -> None:
    import pyarrow as pa

    batch = pa.record_batch({"key": ["a", "b"], "args": ['{"path":"a"}'] * 2, column: values})
    assert RowParser(RULES).read_plain(batch) is None
    assert RowParser(RULES._replace(headers=Headers(tags=("a",)))).read_plain(batch) is None


def test_one_handler_in_a_column_and_empty_columns_are_plain() -> None:
    nothing = [None, None]
    given = {"key": ["a", "b"], "args": ['{"path":"a"}'] * 2}
    rows, _ = both(RULES, {**given, "handler": ["other"] * 2})
    assert (rows.handler, rows.lane) == ("other", "slow")
    import pyarrow as pa

    empty = {name: pa.array(nothing, pa.string()) for name in ("handler", "lane", "priority", "headers", "due_at")}
    assert both(RULES, {**given, **empty})[0].handler == "h"


def test_a_text_that_is_not_utf_8_is_left_to_be_read_one_by_one() -> None:
    import pyarrow as pa

    keys = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(struct.pack("3i", 0, 1, 3)), pa.py_buffer(b"a\xff\xfe")]
    )
    good = pa.array(["a", "b"])
    for columns in ({"key": keys, "args": ["{}"] * 2}, {"key": good, "args": ["{}"] * 2, "handler": keys}):
        assert RowParser(RULES).read_plain(pa.record_batch(columns)) is None


def test_some_of_the_rows_can_be_taken() -> None:
    rows, _ = both(RULES._replace(due_us=9), {"key": list("abcdef"), "args": ['{"path":"a"}'] * 6})
    wanted = frozenset({batch_id(RULES.as_of_ms, "h", "b"), batch_id(RULES.as_of_ms, "h", "e")})
    assert rows.only(wanted).jobs() == [job for job in rows.jobs() if job.id in wanted]
    assert rows.only(frozenset(rows.ids())) is rows
    assert rows.only(frozenset()).count == 0


def test_a_copy_has_the_columns_of_each_row() -> None:
    for due_us in (0, 10**15 + 5):
        rows, _ = both(RULES._replace(due_us=due_us), {"key": ["a", "ä"], "args": ['{"path":"a"}', '{"path":"bb"}']})
        now_us = 10**15
        data = b"".join(rows.copied(now_us))
        assert (data[:11], data[-2:]) == (b"PGCOPY\n\xff\r\n\0", b"\xff\xff")
        for job, fields in zip(rows.jobs(), fields_of(data), strict=True):
            assert fields == expected(job, now_us)


def expected(job: NewJob, now_us: int) -> list[bytes]:
    times = [struct.pack("!q", us - 946_684_800_000_000) for us in (job.due_us or now_us, now_us)]
    fixed = [b"HELD", struct.pack("!h", 3), b"default", b"h", struct.pack("!i", 1)]
    return [job.id, *fixed, *times, job.args, job.headers]


def fields_of(data: bytes) -> list[list[bytes]]:
    """Fields of each row of a binary COPY."""
    found, at = [], 19
    while (count := struct.unpack_from("!h", data, at)[0]) >= 0:
        at += 2
        row = []
        for _ in range(count):
            size = struct.unpack_from("!i", data, at)[0]
            row.append(data[at + 4 : at + 4 + size])
            at += 4 + size
        found.append(row)
    return found
