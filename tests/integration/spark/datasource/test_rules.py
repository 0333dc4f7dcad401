"""What needs neither Spark nor a server: ids of rows, the fast check of arguments, options that choose."""

from __future__ import annotations

import enum
import inspect
import json
import math
import struct
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal
from uuid import UUID

import hypothesis
import msgspec
import pytest
from hypothesis import strategies as st

from jobmaster import Handlers, Limit, Unique
from jobmaster.client.published_schema import problems, whole_numbers
from jobmaster.codec import decode_headers
from jobmaster.handlers.signature import read_signature
from jobmaster.model.agent import HandlerSpec
from jobmaster.model.errors import InputError, JobMasterError, OutcomeUnknown, Refused, UnknownHandler
from jobmaster.model.job import Headers, NewJob
from jobmaster.pipeline.datasource.rows.args_checker import ArgsChecker
from jobmaster.pipeline.datasource.rows.row_parser import RowParser, RowRules, batch_id, read_headers
from jobmaster.pipeline.datasource.selection import floor_id, parse_time, selection_of
from jobmaster.pipeline.datasource.tables import TABLES
from jobmaster.pipeline.spark.errors import error_of_spark
from jobmaster.pipeline.spark.session import parse_conf, require_extra, settings_of, threads_of
from jobmaster.pipeline.steps.mapping import parse_pairs
from jobmaster.settings.model import Limits

RULES = RowRules(
    as_of_ms=1, now_us=1, handler=None, priority=None, lane=None, due_us=0, headers=Headers(), replay=False, lax=False,
    allow_unregistered=False, specs={}, lanes=frozenset({"default"}), default_lane="default", default_priority=3,
    limits=Limits(),
)  # fmt: skip


def test_an_id_is_of_the_row_and_of_the_moment() -> None:
    ids = {batch_id(1_800_000_000_000, "h", f"k{n}") for n in range(20_000)}
    assert len(ids) == 20_000
    one = UUID(bytes=batch_id(1_800_000_000_000, "h", "k"))
    assert (one.version, one.variant) == (7, "specified in RFC 4122")
    assert one.int >> 80 == 1_800_000_000_000
    assert one.bytes == batch_id(1_800_000_000_000, "h", "k")
    assert one.bytes not in (batch_id(1_800_000_000_001, "h", "k"), batch_id(1_800_000_000_000, "g", "k"))


def plain(
    path: str, width: int = 1, ratio: float | None = None, *, deep: dict[str, list[int]] | None = None
) -> None: ...
def closed(kind: str, flags: list[bool]) -> None: ...


VALUES: list[Any] = [
    {"path": "a"}, {"path": "a", "width": 2}, {"path": "a", "width": 2.0}, {"path": "a", "width": "2"},
    {"path": "a", "ratio": None}, {"path": "a", "ratio": 1}, {"path": 1}, {}, {"path": "a", "colour": 1},
    {"path": "a", "deep": {"x": [1, 2]}}, {"path": "a", "deep": {"x": ["y"]}}, {"kind": "a", "flags": [True]},
    {"kind": "a", "flags": [1]}, [], "x", None, {"path": None},
]  # fmt: skip


@pytest.mark.parametrize("function", [plain, closed])
@pytest.mark.parametrize("value", VALUES, ids=json.dumps)
def test_the_fast_check_and_the_slow_check_agree(function: Any, value: Any) -> None:
    schema = read_signature(function, "h").schema
    checker = ArgsChecker(HandlerSpec(name="h", schema=schema), lax=False, limit_bytes=1000)
    args = json.dumps(value).encode()
    said = checker.check(args)
    fitted = whole_numbers(schema, value)
    assert (said.problem is None) == (isinstance(value, dict) and not problems(schema, fitted))
    assert json.loads(said.args) == fitted
    assert (said.args == args) == (json.dumps(fitted) == json.dumps(value))


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Point(msgspec.Struct):
    x: int
    y: float | None = None


def typed(
    path: str,
    count: Annotated[int, msgspec.Meta(ge=1, lt=10)] = 1,
    ratio: float | None = None,
    maybe: int | None = None,
    either: int | str = 0,
    colour: Colour = Colour.RED,
    mode: Literal["fast", "slow", 3] = "fast",
    points: list[Point] | None = None,
    pair: tuple[int, str] = (1, "a"),
    weights: dict[str, int] | None = None,
    at: datetime | None = None,
    key: UUID | None = None,
    price: Decimal | None = None,
    data: bytes = b"",
    flag: bool = False,
    anything: Any = None,
) -> None: ...


def keyed(
    path: str,
    by: dict[int, float] | None = None,
    at: datetime | None = None,
    key: UUID | None = None,
    data: bytes = b"",
    count: int = 1,
    price: Decimal | None = None,
    flag: bool = False,
) -> None:
    """The keys of a mapping are beyond the fast check."""


_AGENT = {function: Handlers().add(function, name="h") for function in (plain, closed, typed, keyed)}
_NAMES = st.sampled_from(["width", "deep", "kind", "flags", "by", *inspect.signature(typed).parameters])
_LEAF = (
    st.none()
    | st.booleans()
    | st.integers(-3, 12)
    | st.sampled_from([3.0, 1.5, -0.0, 1e300, 2.0**53, 2.0**60, 2**63])
    | st.sampled_from(
        ["", "a", "red", "fast", "3", "3.0", "-1", "1e2", "true", "null", "nan", "Infinity", "QUJD", "2030-01-31"]
    )
    | st.sampled_from(["2030-01-31T12:00:00Z", "00000000-0000-4000-8000-000000000000", "1.50", "\U0001f600"])
)
_VALUE = _LEAF | st.lists(_LEAF, max_size=3) | st.dictionaries(st.sampled_from(["x", "y", "1", "a"]), _LEAF, max_size=2)
_ARGS = st.dictionaries(_NAMES, _VALUE | st.lists(_VALUE, max_size=2), max_size=5)


@pytest.mark.parametrize("lax", [False, True])
@pytest.mark.parametrize("function", [plain, closed, typed, keyed], ids=lambda function: function.__name__)
@hypothesis.given(args=_ARGS)
def test_what_is_accepted_here_is_accepted_by_the_agent(function: Any, lax: bool, args: dict[str, Any]) -> None:
    """The other way round it does not hold: a number for a Decimal, say, is refused here, and the agent would take it."""
    handler = _AGENT[function]
    given_args = {"path": "p", **args} if function is not closed else args
    raw = msgspec.json.encode(given_args)
    said = ArgsChecker(handler.spec, lax=lax, limit_bytes=10_000).check(raw)
    if said.problem is None:
        handler.check(said.args)


def test_a_text_for_a_decimal_is_accepted_beside_arguments_that_need_the_full_check() -> None:
    checker = ArgsChecker(_AGENT[keyed].spec, lax=True, limit_bytes=10_000)
    assert checker.check(b'{"path":"p","price":"3"}') == (b'{"path":"p","price":"3"}', None)


def test_schemas_beyond_the_fast_check_get_the_slow_check() -> None:
    schema: dict[str, object] = {
        "type": "object",
        "properties": {"n": {"type": "integer", "multipleOf": 2, "minimum": 3}},
    }
    checker = ArgsChecker(HandlerSpec(name="h", schema=schema), lax=False, limit_bytes=1000)
    assert checker.check(b'{"n":1}').problem == "argument 'n': 1 is no multiple of 2; argument 'n': 1 is less than 3"
    assert checker.check(b'{"n":4}').problem is None


def test_text_stands_for_what_the_signature_asks_for() -> None:
    checker = ArgsChecker(HandlerSpec(name="h", schema=read_signature(plain, "h").schema), lax=True, limit_bytes=1000)
    assert checker.check(b'{"path":"12","width":"34","ratio":"0.5"}').args == b'{"path":"12","width":34,"ratio":0.5}'
    assert "expected integer, got string" in str(checker.check(b'{"path":"a","width":"wide"}').problem)


def test_arguments_that_cannot_travel() -> None:
    checker = ArgsChecker(None, lax=False, limit_bytes=300)
    assert checker.check(b'{"any": ["thing"]}').problem is None
    for args, said in {
        b'{"a":': "no JSON", b"[]": "no JSON object", b'{"a":"' + b"x" * 300 + b'"}': "the limit is 300",
        b'{"a":' + b"[" * 140 + b"]" * 140 + b"}": "nested deeper",
    }.items():  # fmt: skip
        assert said in str(checker.check(args).problem)


@pytest.mark.parametrize("name", ["accept_seconds", "complete_seconds"])
def test_a_time_limit_of_a_row_has_a_greatest_value(name: str) -> None:
    good = read_headers(json.dumps({name: 316_224_000}).encode())
    assert getattr(good, name) == 316_224_000
    for bad in (316_224_001, 1e14, -1, 1e-9):
        refused = read_headers(json.dumps({name: bad}).encode())
        assert isinstance(refused, str)
        assert f"{name} must be 0 (no limit), or 0.000001 to 316224000 seconds" in refused


def test_bounds_of_time_are_bounds_of_ids() -> None:
    moment = datetime(2030, 1, 31, 12, 0, 0, 1, tzinfo=UTC)
    assert floor_id(moment).int >> 80 == int(datetime(2030, 1, 31, 12, tzinfo=UTC).timestamp()) * 1000 + 1
    chosen = selection_of(TABLES["jobs"], ("id",), {"since": "2030-01-01", "until": "2030-01-02T00:00:00+01:00"})
    assert chosen.low == floor_id(datetime(2030, 1, 1, tzinfo=UTC))
    assert chosen.high == floor_id(datetime(2030, 1, 1, 23, tzinfo=UTC))
    with pytest.raises(InputError):
        selection_of(TABLES["jobs"], ("id",), {"states": " , "})


def test_a_date_is_midnight_of_utc_and_a_text_needs_its_zone() -> None:
    import pyarrow as pa

    day = date(2030, 1, 31)
    now_us = int(datetime(2030, 1, 30, tzinfo=UTC).timestamp() * 1e6)
    parser = RowParser(RULES._replace(now_us=now_us, handler="h", allow_unregistered=True))

    def due(value: Any, kind: pa.DataType) -> int | str:
        jobs, rejects = parser.read(pa.record_batch({"key": ["k"], "args": ["{}"], "due_at": pa.array([value], kind)}))
        return jobs[0].due_us if jobs else rejects[0].reason

    midnight = int(datetime(2030, 1, 31, tzinfo=UTC).timestamp() * 1e6)
    assert due(day, pa.date32()) == midnight
    assert due("2030-01-31T00:00:00Z", pa.string()) == midnight
    assert "has no time zone" in str(due("2030-01-31T00:00:00", pa.string()))
    assert parse_time("since", "2030-01-31") == datetime(2030, 1, 31, tzinfo=UTC), "whatever zone the session has"


def test_an_error_under_two_stacks_is_the_one_that_was_raised() -> None:
    text = (
        "[PYTHON_DATA_SOURCE_ERROR] Failed when reading:\nTraceback (most recent call last):\n"
        "jobmaster.model.errors.Unavailable: the first thing\n\nDuring handling of the above exception:\n"
        "jobmaster.model.errors.UnknownHandler: there is no handler 'x' (did you mean y?)\n\tat org.apache.spark..."
    )
    found = error_of_spark(RuntimeError(text))
    assert type(found) is UnknownHandler
    assert found.message == "there is no handler 'x' (did you mean y?)"
    assert type(error_of_spark(RuntimeError("jobmaster.model.errors.OutcomeUnknown: perhaps"))) is OutcomeUnknown
    assert "full" in error_of_spark(RuntimeError("java.io.IOException: No space left on device")).message
    worker = (
        "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"
        '  File "x.py", line 1, in f\n    g()\nUnicodeDecodeError: it is no text\n\n\tat org.apache.spark'
    )
    assert error_of_spark(RuntimeError(worker)).message == "Spark: UnicodeDecodeError: it is no text"
    call = "An error occurred while calling o7.save.\n: org.apache.spark.SparkException: [BAD_FILE] a.parquet: no\n\tat x.y"
    assert error_of_spark(RuntimeError(call)).message == "Spark: [BAD_FILE] a.parquet: no"
    other: JobMasterError = error_of_spark(RuntimeError("[SOME_ERROR] it broke\n\tat java"))
    assert (type(other), other.message) == (Refused, "Spark: [SOME_ERROR] it broke")


def test_options_of_the_user_for_spark_are_parsed() -> None:
    assert parse_conf(["spark.a.b=c=d"]) == {"spark.a.b": "c=d"}
    assert parse_pairs(["a=b = c"], "--map") == {"a": "b = c"}
    for wrong in ("a=b", "spark.x", ""):
        with pytest.raises(InputError):
            parse_conf([wrong])
    with pytest.raises(InputError):
        parse_pairs(["a=1", "a=2"], "--map")
    assert (threads_of("local"), threads_of("local[3]"), threads_of("local[2,3]")) == (1, 3, 2)
    assert threads_of("spark://h:7077") is None
    assert settings_of("local[2]")["spark.driver.host"] == "127.0.0.1"
    assert "spark.driver.host" not in settings_of("yarn")


def test_a_missing_extra_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobmaster.pipeline.spark.session.find_spec", lambda name: None)
    with pytest.raises(Refused) as caught:
        require_extra()
    assert "pyspark" in caught.value.message
    assert 'pip install "jobmaster-cluster[pipeline]"' in (caught.value.hint or "")


def test_a_row_with_headers_keeps_the_trace_of_the_write_or_its_own() -> None:
    own = f"00-{'a' * 32}-{'b' * 16}-01"
    of_write = f"00-{'c' * 32}-{'d' * 16}-01"
    rules = RowRules(
        as_of_ms=1, now_us=1, handler=None, priority=None, lane=None, due_us=0, headers=Headers(), replay=False, lax=False,
        allow_unregistered=True, specs={}, lanes=frozenset({"default"}), default_lane="default", default_priority=3,
        limits=Limits(),
    )  # fmt: skip
    traced = json.dumps({"tags": ["a"], "traceparent": own, "tracestate": "one=1"}).encode()

    def trace(rules: RowRules, headers: bytes, due: str | None = None) -> tuple[str | None, str | None, bool]:
        made = RowParser(rules)._job("k", b"{}", "h", None, None, due, headers)
        assert not isinstance(made, str), made
        found = decode_headers(made.headers)
        return found.traceparent, found.tracestate, found.trace_linked

    assert trace(rules, traced) == (own, "one=1", False)
    assert trace(rules, traced, "1971-01-01T00:00:00Z") == (own, "one=1", True)
    in_span = rules._replace(headers=Headers(traceparent=of_write))
    assert trace(in_span, traced) == (of_write, None, False)
    assert trace(in_span, b'{"tags":["a"]}') == (of_write, None, False)
    assert trace(rules._replace(replay=True), traced) == (None, None, False)


def test_rows_have_the_ordering_key_of_their_handler_or_of_their_headers() -> None:
    ordering: dict[str, object] = {"template": "order:{order}", "defaults": {"order": 1}}
    schema: dict[str, object] = {"type": "object", "properties": {"order": {}}}
    specs = {
        "change": HandlerSpec(name="change", schema=schema, ordering=ordering),
        "coded": HandlerSpec(name="coded", schema=schema, ordering={}),
        "plain": HandlerSpec(name="plain", schema=schema),
    }
    rules = RowRules(
        as_of_ms=1, now_us=1, handler=None, priority=None, lane=None, due_us=0, headers=Headers(), replay=False, lax=False,
        allow_unregistered=False, specs=specs, lanes=frozenset({"default"}), default_lane="default", default_priority=3,
        limits=Limits(),
    )  # fmt: skip

    def job(handler: str, args: bytes, headers: bytes | None = None) -> Headers | str:
        made = RowParser(rules)._job("k", args, handler, None, None, None, headers)
        return made if isinstance(made, str) else decode_headers(made.headers)

    for handler, args, headers, key in (
        ("change", b'{"order":17}', None, "order:17"),
        ("change", b"{}", b'{"tags":["a"]}', "order:1"),
        ("change", b"{}", b'{"ordering_key":"mine"}', "mine"),
        ("plain", b"{}", b'{"ordering_key":"mine"}', "mine"),
    ):
        found = job(handler, args, headers)
        assert isinstance(found, Headers)
        assert (found.ordering_key, found.requires) == (key, ("ordering",))
    plain_row = job("plain", b"{}")
    assert isinstance(plain_row, Headers)
    assert plain_row.ordering_key is None
    assert "must be text, a whole number or a boolean, not 1.5" in str(job("change", b'{"order":1.5}'))
    assert "computed by a function" in str(job("coded", b"{}"))
    assert "a quote or a backslash" in str(job("plain", b"{}", b'{"ordering_key":"\\\\"}'))
    assert "one run at a time" in str(job("change", b"{}", b'{"complete_seconds":5}'))


def test_rows_follow_the_limits_the_unique_key_and_the_tenant_that_their_handler_declares() -> None:
    handlers = Handlers()

    @handlers.job(name="sync", limit=Limit("crm", 2), unique=Unique(args=["customer"], debounce=60))
    async def sync(customer: int, full: bool = False) -> None: ...

    @handlers.job(name="mail", tenant="acme")
    async def mail(customer: int) -> None: ...

    specs = {handler.name: handler.spec for handler in handlers}
    rules = RowRules(
        as_of_ms=1, now_us=1, handler=None, priority=None, lane=None, due_us=0, headers=Headers(), replay=False, lax=False,
        allow_unregistered=False, specs=specs, lanes=frozenset({"default"}), default_lane="default", default_priority=3,
        limits=Limits(),
    )  # fmt: skip
    parser = RowParser(rules)
    made = parser._job("k", b'{"customer":7}', "sync", None, None, 50_000_000, None)
    assert isinstance(made, NewJob)
    headers = decode_headers(made.headers)
    assert (headers.requires, headers.unique_key, headers.unique_term) == (("limits",), '{"customer":7}', "waiting")
    assert parser.unique[made.id].key == '{"customer":7}'
    late = parser._job("k", b'{"customer":7}', "sync", None, None, None, None)
    assert late == "a debounced submit needs a due time in the future"
    again = RowParser(rules._replace(replay=True))
    assert isinstance(again._job("k", b'{"customer":7}', "sync", None, None, None, None), NewJob)
    assert again.unique == {}
    for given, tenant in ((None, "acme"), (b'{"tags":["a"]}', "acme"), (b'{"tenant":["zoo"]}', "zoo")):
        mailed = parser._job("k", b'{"customer":7}', "mail", None, None, None, given)
        assert isinstance(mailed, NewJob)
        assert decode_headers(mailed.headers).tenant == (tenant,)
    assert "is not the name of a tenant" in str(
        parser._job("k", b'{"customer":7}', "mail", None, None, None, b'{"tenant":["a b"]}')
    )
    deleted = again._job("k", b'{"customer":7}', "sync", None, None, None, b'{"deleted":true}')
    assert deleted == "the contents of the job have been deleted"


def test_args_of_a_struct_are_what_to_json_makes_of_it_and_one_unreadable_value_stops_no_other() -> None:
    import pyarrow as pa

    from jobmaster.pipeline.datasource.rows.row_parser import column_values

    inner = pa.struct([("m", pa.map_(pa.string(), pa.int64())), ("price", pa.decimal128(9, 2)), ("n", pa.int64())])
    kind = pa.struct(
        [("deep", inner), ("list", pa.list_(inner)), ("by", pa.map_(pa.int32(), inner)), ("f", pa.float64())]
    )
    one = {"m": [("x", 1), ("y", None)], "price": Decimal("1.50"), "n": None}
    rows = [{"deep": one, "list": [one, None], "by": [(7, one)], "f": math.nan}, None]
    told = {"m": {"x": 1, "y": None}, "price": 1.5}
    first, second = column_values(pa.array(rows, kind), "args")
    assert json.loads(first) == {"deep": told, "list": [told, None], "by": {"7": told}, "f": "NaN"}
    assert b'"price":1.50' in first
    assert second == b"{}"
    keys = pa.Array.from_buffers(
        pa.string(), 3, [None, pa.py_buffer(struct.pack("4i", 0, 1, 3, 4)), pa.py_buffer(b"a\xff\xfec")]
    )
    rules = RowRules(
        as_of_ms=1, now_us=1, handler="h", priority=None, lane=None, due_us=0, headers=Headers(), replay=False, lax=False,
        allow_unregistered=True, specs={}, lanes=frozenset({"default"}), default_lane="default", default_priority=3,
        limits=Limits(),
    )  # fmt: skip
    jobs, rejects = RowParser(rules).read(pa.record_batch({"key": keys, "args": ["{}"] * 3}))
    assert len(jobs) == 2
    assert [(row.key, row.reason[:29]) for row in rejects] == [("\ufffd\ufffd", "column key cannot be read: 'u")]
