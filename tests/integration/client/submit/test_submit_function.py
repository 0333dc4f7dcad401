"""The function ``submit`` of the schema does what a producer's own insert does: compared row by row, and error by error."""

from __future__ import annotations

import asyncio
import json
import random
import re
import sys
import unicodedata
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias
from uuid import UUID

import asyncpg
import msgspec
import pytest

from jobmaster.client.dedup import canonical
from jobmaster.client.idempotency_keys import digest
from jobmaster.clock import new_id
from jobmaster.codec import encode_args
from jobmaster.handlers import Handlers
from jobmaster.master.driver.statements import sql as statement
from jobmaster.model import ids
from jobmaster.model.errors import Conflict, InputError, JobMasterError
from jobmaster.settings.submit_rules import submit_rules
from tests.integration.client.fixture import ClientFixture, resize
from tests.support.cases import about
from tests.support.patience import PATIENCE_SECONDS

Sql: TypeAlias = "asyncpg.Connection[asyncpg.Record]"
DUE = datetime(2031, 3, 4, 5, 6, 7, 890123, tzinfo=UTC)
COLUMNS = (
    "state, priority, lane, handler, token, bucket_id, bucket_epoch, attempt, rescues, cancel_requested, waited_us, ran_us,"
    " result, error"
)


limited = Handlers()
"""Handlers that only their published specifications are known of."""


@limited.job(name="timed", timeout=30)
async def timed() -> None: ...


@limited.job(name="slow", timeout=30, complete_time=10)
async def slow() -> None: ...


async def submit(sql: Sql, handler: object, args: Any = None, **options: Any) -> UUID:
    """The SQL function, as a program calls it."""
    job_id: UUID = await sql.fetchval(
        "SELECT submit($1, $2, $3)", handler, json.dumps({} if args is None else args), json.dumps(options)
    )
    return job_id


async def refused(sql: Sql, handler: object, args: Any = None, **options: Any) -> asyncpg.PostgresError:
    """The error of a submit that stores nothing."""
    before = await sql.fetchval("SELECT count(*) FROM job")
    with pytest.raises(asyncpg.PostgresError) as caught:
        await submit(sql, handler, args, **options)
    assert await sql.fetchval("SELECT count(*) FROM job") == before
    assert (
        await sql.fetchval("SELECT count(*) FROM idempotency WHERE key = $1", str(options.get("idempotency_key"))) == 0
    )
    return caught.value


@pytest.fixture
async def sql(client: ClientFixture) -> Any:
    await client.agent.open("payroll", 4)
    await client.master.members.publish_submit_rules(submit_rules(client.settings))
    connection = await client.connect()
    specs = [handler.spec for handler in limited]
    await connection.execute(
        statement("members/publish_handlers"),
        UUID(bytes=new_id()),
        [spec.name for spec in specs],
        [msgspec.json.encode(spec).decode() for spec in specs],
        [spec.digest for spec in specs],
    )
    yield connection
    await connection.close()


async def row(sql: Sql, job_id: UUID) -> dict[str, Any]:
    found = await sql.fetchrow(f"SELECT {COLUMNS}, args, headers, due_at, expires_at FROM job WHERE id = $1", job_id)
    assert found is not None
    return dict(found)


CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "plain": ("images.resize", {"path": "a"}, {}),
    "its handler's lane and priority": ("pay", {"employee": 7}, {}),
    "priority by name": ("images.resize", {"path": "a"}, {"priority": " High "}),
    "priority by number": ("images.resize", {"path": "a"}, {"priority": 5}),
    "lane": ("images.resize", {"path": "a"}, {"lane": "payroll"}),
    "due": ("images.resize", {"path": "a"}, {"at": DUE}),
    "due with another zone": ("images.resize", {"path": "a"}, {"at": DUE.astimezone(tz=None) + timedelta(0)}),
    "expires": ("images.resize", {"path": "a"}, {"at": DUE, "expires": DUE + timedelta(seconds=1)}),
    "tags": ("images.resize", {"path": "a"}, {"tags": ["b", "a", 'quote " and é']}),
    "no tags": ("images.resize", {"path": "a"}, {"tags": [], "metadata": {}}),
    "metadata": ("images.resize", {"path": "a"}, {"metadata": {"a": "\n\t\x01\x7f", "b": ""}}),
    "limits": ("images.resize", {"path": "a"}, {"timeout": 1.5, "max_attempts": 7}),
    "late work": ("images.resize", {"path": "a"}, {"accept_time": 2.5, "complete_time": 30, "cancel_slow": True}),
    "complete before the handler's end": ("timed", {}, {"complete_time": 29.5, "cancel_slow": True}),
    "complete before a longer end": ("timed", {}, {"complete_time": 60, "timeout": 90}),
    "the handler's complete time": ("slow", {}, {"cancel_slow": True}),
    "no limits of time": ("images.resize", {"path": "a"}, {"accept_time": 0, "complete_time": 0, "cancel_slow": False,
                                                           "delivery": "at_most_once"}),
    "whole seconds": ("images.resize", {"path": "a"}, {"timeout": 30}),
    "at most once": ("images.resize", {"path": "a"}, {"delivery": "at_most_once"}),
    "key": ("images.resize", {"path": "a"}, {"idempotency_key": "k"}),
    "ordering key": ("images.resize", {"path": "a"}, {"ordering_key": "order é / 17"}),
    "ordering key and others": ("images.resize", {"path": "a"}, {"ordering_key": "o", "tags": ["a"], "max_attempts": 2}),
    "ordering key and one start": ("images.resize", {"path": "a"}, {"ordering_key": "o", "delivery": "at_most_once"}),
    "ordering key, a key and one start": ("images.resize", {"path": "a"}, {
        "ordering_key": "o", "delivery": "at_most_once", "idempotency_key": "k", "metadata": {"a": "}"},
    }),
    "trace": ("images.resize", {"path": "a"}, {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}),
    "trace of a delayed job, state, tenant": ("images.resize", {"path": "a"}, {
        "traceparent": f"00-{'a' * 32}-{'b' * 16}-00", "tracestate": "one=1,two@x=a;b", "tenant": "acme", "after": 60,
    }),
    "trace and order": ("images.resize", {"path": "a"}, {
        "traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "tracestate": "", "ordering_key": "o", "tags": ["a"],
    }),
    "tenant": ("images.resize", {"path": "a"}, {"tenant": "Acme/eu@1"}),
    "tenant and others": ("images.resize", {"path": "a"}, {
        "tenant": "acme", "ordering_key": "o", "tags": ["a"], "delivery": "at_most_once", "complete_time": 0,
    }),
    "ordering key after metadata": ("images.resize", {"path": "a"}, {"ordering_key": "o", "metadata": {"a": "}"}}),
    "all": (
        "images.resize",
        {"path": "ü \u2028 \U0001f600 \\ / \x1f", "width": 12},
        {
            "at": DUE, "expires": DUE + timedelta(days=1), "tags": ["x"], "metadata": {"k": "v"}, "timeout": 0.25,
            "max_attempts": 1, "delivery": "at_most_once", "idempotency_key": "k\\\"2", "priority": "critical",
        },
    ),
    "unregistered": (
        "no.such",
        {"a": [1, -2.5, 1e-7, 123456.75, True, None, {"z": [], "é": {}}], "b": 10**30, "c": 0.1, "d": -0.0 + 1.0},
        {"allow_unregistered": True},
    ),
}  # fmt: skip


async def test_the_row_is_that_of_a_producers_insert(client: ClientFixture, sql: Sql) -> None:
    for case, (handler, args, options) in CASES.items():
        with about(case):
            await sql.execute("DELETE FROM idempotency")
            async with sql.transaction():
                receipt = await client.cluster.submit(handler, args, connection=sql, **options)
            expected = await row(sql, UUID(str(receipt)))
            await sql.execute("DELETE FROM idempotency")
            plain = {
                name: value.isoformat() if isinstance(value, datetime) else value for name, value in options.items()
            }
            found = await row(sql, await submit(sql, handler, args, **plain))
            if "at" not in options:
                assert abs(found.pop("due_at") - expected.pop("due_at")) < timedelta(minutes=1)
            assert found == expected


async def test_arguments_of_every_shape_are_stored_as_the_client_compares_them(sql: Sql) -> None:
    """The stored form is the canonical one, so a key that SQL reserved is known to a producer, and the other way round."""
    chance = random.Random(12)

    def value(depth: int) -> object:
        kinds: list[Callable[[], object]] = [
            lambda: chance.choice([None, True, False, "", "x", "\u007f\u0080\uffff\U0010ffff", '"\\\n\r\t\b\f']),
            lambda: chance.randint(-(10 ** chance.randint(1, 25)), 10 ** chance.randint(1, 25)),
            lambda: round(chance.uniform(-10, 10) * 10.0 ** chance.randint(-12, 11), chance.randint(1, 12)) + 0.0,
            lambda: chance.random() * 10.0 ** chance.randint(-300, 9),
        ]
        if depth < 4:
            kinds += [
                lambda: [value(depth + 1) for _ in range(chance.randint(0, 4))],
                lambda: {chance.choice("aAzé_1") + str(i): value(depth + 1) for i in range(chance.randint(0, 4))},
            ]
        return chance.choice(kinds)()

    for _ in range(400):
        args = {f"{name}": value(0) for name in chance.sample(["b", "a", "é", "B", "aa"], 3)}
        data = encode_args(args)
        job_id = await submit(sql, "no.such", args, allow_unregistered=True)
        stored = (await row(sql, job_id))["args"]
        assert stored == canonical(data)


async def test_keys_are_the_same_in_sql_and_in_programs(client: ClientFixture, sql: Sql) -> None:
    first = await submit(sql, "images.resize", {"path": "a", "width": 3}, idempotency_key="k")
    again = await client.cluster.submit(resize, {"width": 3, "path": "a"}, idempotency_key="k")
    assert (str(again), again.duplicate) == (str(first), True)
    with pytest.raises(Conflict):
        await client.cluster.submit(resize, {"path": "b"}, idempotency_key="k")
    theirs = await client.cluster.submit(resize, {"path": "x", "width": 1}, idempotency_key="k2")
    assert str(await submit(sql, "images.resize", {"width": 1, "path": "x"}, idempotency_key="k2")) == str(theirs)
    with pytest.raises(asyncpg.UniqueViolationError, match=f"'k2' of handler 'images.resize' belongs to job {theirs}"):
        await submit(sql, "images.resize", {"path": "y"}, idempotency_key="k2")
    assert await sql.fetchval("SELECT digest FROM idempotency WHERE key = 'k'") == digest(
        "images.resize", b'{"path":"a","width":3}'
    )


async def test_a_key_goes_back_with_its_transaction_and_one_without_a_row_is_taken_up(
    client: ClientFixture, sql: Sql
) -> None:
    transaction = sql.transaction()
    await transaction.start()
    await submit(sql, "images.resize", {"path": "a"}, idempotency_key="k")
    await transaction.rollback()
    assert await sql.fetchval("SELECT count(*) FROM idempotency") == 0
    reserved = new_id()
    await client.master.intake.reserve_keys(
        "images.resize", [("k", reserved, digest("images.resize", b'{"path":"a"}'))]
    )
    assert (await submit(sql, "images.resize", {"path": "a"}, idempotency_key="k")).bytes == reserved
    assert await client.rows() == {reserved: "HELD"}


async def test_a_key_that_outlived_its_job_gives_the_job_and_stores_nothing(client: ClientFixture, sql: Sql) -> None:
    old = bytes(6) + new_id()[6:]
    future = b"\x7f" + new_id()[1:]
    for key, holder in (("old", old), ("dropped", future)):
        held = digest("images.resize", b'{"path":"a"}')
        await client.master.intake.reserve_keys("images.resize", [(key, holder, held)])
        assert (await submit(sql, "images.resize", {"path": "a"}, idempotency_key=key)).bytes == holder
    assert await client.rows() == {}


async def test_a_second_transaction_waits_for_a_key_and_gets_the_first_ones_job(
    client: ClientFixture, sql: Sql
) -> None:
    other = await client.connect()
    transaction = sql.transaction()
    await transaction.start()
    first = await submit(sql, "images.resize", {"path": "a"}, idempotency_key="k")
    second = asyncio.ensure_future(submit(other, "images.resize", {"path": "a"}, idempotency_key="k"))
    watcher = await client.connect()
    while not await watcher.fetchval(
        "SELECT count(*) FROM pg_stat_activity WHERE pid = $1 AND wait_event_type = 'Lock'", other.get_server_pid()
    ):
        assert not second.done()
    await transaction.commit()
    assert await second == first
    assert await client.rows() == {first.bytes: "HELD"}
    await watcher.close()
    await other.close()


async def test_ids_are_version_seven_now_and_in_order(sql: Sql) -> None:
    made = [await submit(sql, "images.resize", {"path": "a"}) for _ in range(50)]
    assert made == sorted(made)
    for one in made:
        assert one.version == 7
        assert one.variant == "specified in RFC 4122"
        age = datetime.now(UTC).timestamp() - ids.created_ms(one.bytes) / 1000
        assert -1 < age < 60


async def test_an_own_id_again_is_the_same_job_and_another_payload_is_refused(sql: Sql) -> None:
    own = str(UUID(bytes=new_id()))
    assert str(await submit(sql, "images.resize", {"path": "a"}, job_id=own)) == own
    assert str(await submit(sql, "images.resize", {"path": "a"}, job_id=own.upper().replace("-", ""))) == own
    for handler, args in (("images.resize", {"path": "b"}), ("pay", {"employee": 1})):
        error = await refused(sql, handler, args, job_id=own)
        assert isinstance(error, asyncpg.UniqueViolationError)
        assert "exists already, for handler 'images.resize'" in str(error)


async def test_an_own_id_whose_stored_text_jsonb_cannot_hold_is_another_payload(
    client: ClientFixture, sql: Sql
) -> None:
    receipt = await client.cluster.submit(resize, {"path": "a\0"}, durability="master")
    error = await refused(sql, "images.resize", {"path": "a"}, job_id=str(receipt))
    assert isinstance(error, asyncpg.UniqueViolationError)


BAD: dict[str, tuple[Any, Any, dict[str, Any], str]] = {
    "no name": (None, {}, {}, "the handler's name must be text"),
    "empty name": ("", {}, {}, "the handler's name is empty"),
    "long name": ("x" * 201, {}, {}, "has 201 characters, the limit is 200"),
    "line break": ("a\nb", {}, {}, "not printable"),
    "unknown handler": ("images.resiz", {}, {}, r"there is no handler 'images.resiz'"),
    "arguments are no object": ("images.resize", [1], {}, "must be an object of names and values, not array"),
    "missing argument": ("images.resize", {}, {}, "'images.resize': missing argument 'path'"),
    "unknown argument": ("images.resize", {"path": "a", "widht": 1}, {}, "argument 'widht' .did you mean 'width'"),
    "wrong type": ("images.resize", {"path": 1}, {}, "argument 'path': expected string, got number"),
    "no integer": ("images.resize", {"path": "a", "width": 1.5}, {}, "argument 'width': expected integer, got number"),
    "too large": ("images.resize", {"path": "a" * 131072}, {}, r"have 131083 bytes, the limit is 131072"),
    "too deep": ("x", {"a": json.loads("[" * 101 + "]" * 101)}, {"allow_unregistered": True}, "nested deeper than 100"),
    "no trace": ("images.resize", {"path": "a"}, {"traceparent": "00-1-2-3"}, "is no W3C trace context"),
    "trace of zeros": ("images.resize", {"path": "a"}, {"traceparent": f"00-{'0' * 32}-{'b' * 16}-01"},
                       "is no W3C trace context"),
    "trace of another kind": ("images.resize", {"path": "a"}, {"traceparent": 7}, "is no W3C trace context"),
    "state alone": ("images.resize", {"path": "a"}, {"tracestate": "a=1"}, "is no W3C trace context"),
    "state with a quote": ("images.resize", {"path": "a"}, {
        "traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "tracestate": 'a="1"'}, "must be at most 512 printable"),
    "trace above the limit": ("images.resize", {"path": "a"}, {
        "traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "tracestate": "x" * 500, "metadata": {"a": "x" * 16_000}},
        "options have 16609 bytes together, the limit is 16384"),
    "tenant with a blank": ("images.resize", {"path": "a"}, {"tenant": "a b"}, "is not the name of a tenant"),
    "tenant with a line": ("images.resize", {"path": "a"}, {"tenant": "a\n"}, "is not the name of a tenant"),
    "tenant of another kind": ("images.resize", {"path": "a"}, {"tenant": 7}, "is not the name of a tenant"),
    "unknown option": ("images.resize", {"path": "a"}, {"priorty": 1}, "no option 'priorty'"),
    "durability": ("images.resize", {"path": "a"}, {"durability": "store"}, "no option 'durability'"),
    "priority": ("images.resize", {"path": "a"}, {"priority": "hgh"}, 'unknown priority "hgh"'),
    "priority 6": ("images.resize", {"path": "a"}, {"priority": 6}, "unknown priority 6"),
    "priority true": ("images.resize", {"path": "a"}, {"priority": True}, "unknown priority true"),
    "lane form": ("images.resize", {"path": "a"}, {"lane": "Pay Roll"}, "'Pay Roll' is not the name of a lane"),
    "lane": ("images.resize", {"path": "a"}, {"lane": "payrol"}, "no agent serves lane 'payrol'"),
    "lane 1": ("images.resize", {"path": "a"}, {"lane": 1}, "not the name of a lane"),
    "two times": ("images.resize", {"path": "a"}, {"at": DUE.isoformat(), "after": 1}, "both 'at' and 'after'"),
    "naive": ("images.resize", {"path": "a"}, {"at": "2031-01-01T10:00:00"}, "its time zone is unknown"),
    "date": ("images.resize", {"path": "a"}, {"at": "2031-01-01"}, "its time zone is unknown"),
    "no such day": ("images.resize", {"path": "a"}, {"at": "2031-02-30T10:00:00Z"}, "'at' must be a time with its zone"),
    "no time": ("images.resize", {"path": "a"}, {"at": "tomorrow"}, "'at' must be a time with its zone"),
    "at a number": ("images.resize", {"path": "a"}, {"at": 5}, "'at' must be a time with its zone"),
    "far": ("images.resize", {"path": "a"}, {"after": 3661 * 86400}, "3661 days ahead, the limit is 3660"),
    "very far": ("images.resize", {"path": "a"}, {"after": 10**30}, "'after' must be seconds"),
    "after text": ("images.resize", {"path": "a"}, {"after": "soon"}, "'after' must be seconds"),
    "after true": ("images.resize", {"path": "a"}, {"after": True}, "'after' must be seconds"),
    "expired": ("images.resize", {"path": "a"}, {"expires": -1}, "'expires' is not in the future"),
    "expires before": ("images.resize", {"path": "a"}, {"after": 60, "expires": 30}, "not after the due time"),
    "tags text": ("images.resize", {"path": "a"}, {"tags": "a"}, "'tags' must be a list"),
    "many tags": ("images.resize", {"path": "a"}, {"tags": [str(i) for i in range(17)]}, "may have 16 tags, 17 are given"),
    "tag number": ("images.resize", {"path": "a"}, {"tags": [1]}, "tag 1 must be text"),
    "long tag": ("images.resize", {"path": "a"}, {"tags": ["x" * 65]}, "has 65 characters, the limit is 64"),
    "metadata list": ("images.resize", {"path": "a"}, {"metadata": ["a"]}, "'metadata' must be an object"),
    "metadata number": ("images.resize", {"path": "a"}, {"metadata": {"a": 1}}, "metadata 'a' must be text, not number"),
    "metadata null": ("images.resize", {"path": "a"}, {"metadata": {"a": None}}, "metadata 'a' must be text, not null"),
    "metadata key": ("images.resize", {"path": "a"}, {"metadata": {"": "x"}}, "metadata key  is empty"),
    "large headers": ("images.resize", {"path": "a"}, {"metadata": {"a": "x" * 16384}}, "bytes together, the limit is 16384"),
    "timeout": ("images.resize", {"path": "a"}, {"timeout": 0}, "'timeout' must be more than 0"),
    "attempts": ("images.resize", {"path": "a"}, {"max_attempts": 0}, "'max_attempts' must be a whole number"),
    "accept time": ("images.resize", {"path": "a"}, {"accept_time": -1}, r"'accept_time' must be 0 \(no limit\), or"),
    "accept for ever": ("images.resize", {"path": "a"}, {"accept_time": 316224001}, "to 316224000 seconds, not 316224001"),
    "complete for ever": ("images.resize", {"path": "a"}, {"complete_time": 9e11}, "to 316224000 seconds, not "),
    "complete at once": ("images.resize", {"path": "a"}, {"complete_time": 1e-9}, "0.000001 to 316224000 seconds, not "),
    "complete once": ("images.resize", {"path": "a"}, {"complete_time": 1, "delivery": "at_most_once"}, "has one start"),
    "complete late": ("images.resize", {"path": "a"}, {"complete_time": 60, "timeout": 60}, "must be less than 'timeout'"),
    "complete after the handler's end": (
        "timed", {}, {"complete_time": 30}, r"'complete_time' \(30\) must be less than the handler's timeout \(30",
    ),
    "slow for ever": ("timed", {}, {"cancel_slow": True}, "'cancel_slow' goes with 'complete_time'"),
    "slow without limit": ("slow", {}, {"cancel_slow": True, "complete_time": 0}, "'cancel_slow' goes with 'complete_time'"),
    "half attempts": ("images.resize", {"path": "a"}, {"max_attempts": 1.5}, "'max_attempts' must be a whole number"),
    "delivery": ("images.resize", {"path": "a"}, {"delivery": "exactly_once"}, "can only be 'at_most_once'"),
    "once with 2": ("images.resize", {"path": "a"}, {"delivery": "at_most_once", "max_attempts": 2}, "has one attempt"),
    "key empty": ("images.resize", {"path": "a"}, {"idempotency_key": ""}, "idempotency_key is empty"),
    "key long": ("images.resize", {"path": "a"}, {"idempotency_key": "k" * 201}, "the limit is 200"),
    "key number": ("images.resize", {"path": "a"}, {"idempotency_key": 5}, "idempotency_key must be text"),
    "id": ("images.resize", {"path": "a"}, {"job_id": "x"}, "is not a UUIDv7"),
    "id 4": ("images.resize", {"path": "a"}, {"job_id": "2f7c1e0a-8f53-4f1b-9d0e-6f8f4f7d2a11"}, "is not a UUIDv7"),
    "id old": ("images.resize", {"path": "a"}, {"job_id": "01800000-8f53-7f1b-9d0e-6f8f4f7d2a11"}, "s off the database"),
    "unregistered": ("no.such", {}, {"allow_unregistered": "yes"}, "'allow_unregistered' must be true or false"),
    "unserved": ("images.resize", {"path": "a"}, {"on_unserved": "wait"}, "'on_unserved' must be 'hold' or 'raise'"),
    "notify": ("images.resize", {"path": "a"}, {"notify": 1}, "'notify' must be true or false"),
    "wait for a number": ("images.resize", {"path": "a"}, {"wait_for": 17}, "'wait_for' must be the key of a signal"),
    "wait for nothing": ("images.resize", {"path": "a"}, {"wait_for": {"timeout": 1}}, "the key of a signal must be text"),
    "wait for a quote": ("images.resize", {"path": "a"}, {"wait_for": 'a"b'}, "contains a double quote"),
    "wait field": ("images.resize", {"path": "a"}, {"wait_for": {"key": "a", "time_out": 1}}, "did you mean 'timeout'"),
    "wait no time": ("images.resize", {"path": "a"}, {"wait_for": {"key": "a", "timeout": 0}}, "must be more than 0"),
    "wait ends": ("images.resize", {"path": "a"}, {"wait_for": {"key": "a", "on_timeout": "fail"}}, "'expire' or 'run'"),
    "wait runs": ("images.resize", {"path": "a"}, {"wait_for": {"key": "a", "on_timeout": "run"}}, "has no time-out"),
}  # fmt: skip


async def test_bad_input_is_one_error_and_stores_nothing(client: ClientFixture, sql: Sql) -> None:
    for case, (handler, args, options, message) in BAD.items():
        with about(case):
            error = await refused(sql, handler, args, **options)
            assert error.sqlstate in ("22023", "42704"), error
            assert re.search(message, str(error)), error


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ('{"x": 1e400}', "argument 'x': a number with an exponent of 400 is outside double precision"),
        ('{"x": -1e309}', "argument 'x': a number with an exponent of 309 is outside"),
        ('{"x": 1e-400}', "argument 'x': a number with an exponent of -400 is outside"),
        ('{"a": {"b": [1, 1e400]}}', "argument 'a'.b[1]: a number with an exponent of 400 is outside"),
    ],
)
async def test_a_number_outside_double_precision_is_refused_with_its_place(sql: Sql, args: str, message: str) -> None:
    with pytest.raises(asyncpg.InvalidParameterValueError) as caught:
        await sql.fetchval("""SELECT submit('no.such', $1, '{"allow_unregistered": true}')""", args)
    assert message in str(caught.value)
    assert await sql.fetchval("SELECT count(*) FROM job") == 0


async def test_the_largest_and_the_smallest_numbers_are_stored(sql: Sql) -> None:
    args = '{"a":1.7976931348623157e308,"b":-5e-324,"c":0.0,"d":[1e308]}'
    job_id = await sql.fetchval("""SELECT submit('no.such', $1, '{"allow_unregistered": true}')""", args)
    stored = msgspec.json.decode((await row(sql, job_id))["args"])
    assert [float(stored[name]) for name in "abc"] == [1.7976931348623157e308, -5e-324, 0.0]
    assert float(stored["d"][0]) == 1e308


async def test_a_word_that_is_no_zone_is_refused(sql: Sql) -> None:
    for word in (" PM", "AM", " BC", " Monday", " nowhere", " Nowhere/Else"):
        with about(word):
            error = await refused(sql, "images.resize", {"path": "a"}, at=f"2031-01-01 10:00:00{word}")
            assert (error.sqlstate, "must be a time with its zone" in str(error)) == ("22023", True)


async def test_what_sql_refuses_a_producer_refuses_too(client: ClientFixture, sql: Sql) -> None:
    for case, (handler, args, options, _) in BAD.items():
        if case in ("durability", "after text", "notify", "no name", "unregistered"):
            continue
        plain: Any = {
            name: datetime.fromisoformat(value) if name == "at" and str(value).startswith("2031-01") else value
            for name, value in options.items()
        }
        with about(case):
            async with sql.transaction():
                with pytest.raises(JobMasterError) as caught:
                    await client.cluster.submit(handler, args, connection=sql, **plain)
                assert isinstance(caught.value, InputError)


async def test_hints_name_the_nearest_word(sql: Sql) -> None:
    expected = {
        "unknown handler": "did you mean 'images.resize'?",
        "unknown option": "did you mean 'priority'?",
        "priority": "did you mean 'high'?",
        "lane": "did you mean 'payroll'?",
    }
    for case, hint in expected.items():
        handler, args, options, _ = BAD[case]
        assert hint in str((await refused(sql, handler, args, **options)).hint)


async def test_every_character_that_is_refused_in_names_is_refused_in_sql(sql: Sql) -> None:
    categories = ("Cc", "Cf", "Zl", "Zp", "Zs", "Co")
    bad = [
        char
        for char in map(chr, range(1, sys.maxunicode + 1))
        if unicodedata.category(char) in categories and not char.isprintable()
    ]
    sample = [char for i, char in enumerate(bad) if (i < 2200 and i % 7 == 0) or i < 100 or i % 5000 == 0]
    for char in [*sample, bad[-1]]:
        with pytest.raises(asyncpg.InvalidParameterValueError, match="not printable"):
            await sql.fetchval("SELECT submit_name(to_jsonb($1::text), 'it', 200)", f"a{char}")
    for char in "aé 漢😀~":
        assert await sql.fetchval("SELECT submit_name(to_jsonb($1::text), 'it', 200)", f"a{char}") == f"a{char}"


async def test_limits_are_those_that_the_cluster_has_published(client: ClientFixture, sql: Sql) -> None:
    await client.master.members.publish_submit_rules(
        {**submit_rules(client.settings), "args_bytes": 20, "lanes": ["far"], "lane": "far", "priority": 1}
    )
    error = await refused(sql, "no.such", {"a": "x" * 13}, allow_unregistered=True)
    assert "have 21 bytes, the limit is 20" in str(error)
    found = await row(sql, await submit(sql, "no.such", {"a": "x" * 12}, allow_unregistered=True))
    assert (found["lane"], found["priority"]) == ("far", 1)


async def test_times_may_be_texts_of_postgresql(sql: Sql) -> None:
    job_id = await sql.fetchval(
        """SELECT submit('images.resize', '{"path": "a"}', jsonb_build_object('at', timestamptz '2031-01-01 10:00+01',
           'timeout', interval '90 seconds'))"""
    )
    found = await row(sql, job_id)
    assert found["due_at"] == datetime(2031, 1, 1, 9, tzinfo=UTC)
    assert found["headers"] == b'{"timeout_seconds":90.0}'
    for text in (
        "2031-01-01 10:00:00 Europe/Berlin",
        "2031-01-01 10:00:00+0100",
        "2031-01-01T09:00Z",
        "2031-01-01 04:00 Etc/GMT+5",
        "2031-01-01 10:00:00 CET",
    ):
        assert (await row(sql, await submit(sql, "images.resize", {"path": "a"}, at=text)))["due_at"] == found["due_at"]
    held = await row(sql, await submit(sql, "images.resize", {"path": "a"}, after="2 hours"))
    assert timedelta(minutes=119) < held["due_at"] - datetime.now(UTC) < timedelta(minutes=121)
    past = await row(sql, await submit(sql, "images.resize", {"path": "a"}, at="1999-01-01T00:00:00Z"))
    assert abs(past["due_at"] - datetime.now(UTC)) < timedelta(minutes=1)


async def test_a_session_with_other_settings_writes_the_same_row(client: ClientFixture, sql: Sql) -> None:
    args = {"a": 0.1 + 0.2, "b": [1e-7, 123456789.125]}
    expected = await row(
        sql, await submit(sql, "no.such", args, allow_unregistered=True, timeout=0.1, at=DUE.isoformat())
    )
    for settings in (
        "SET extra_float_digits = 0", "SET timezone = 'Asia/Tokyo'", "SET datestyle = 'SQL, DMY'", "SET search_path = public",
        "SET bytea_output = 'escape'", "SET intervalstyle = 'sql_standard'",
    ):  # fmt: skip
        await sql.execute(settings)
    schema = client.settings.schema_name()
    job_id = await sql.fetchval(
        f"SELECT {schema}.submit($1, $2, $3)", "no.such", json.dumps(args),
        json.dumps({"allow_unregistered": True, "timeout": 0.1, "at": DUE.isoformat()}),
    )  # fmt: skip
    await sql.execute("RESET ALL")
    await sql.execute(f"SET search_path = {schema}")
    assert await row(sql, job_id) == expected


async def test_a_trigger_submits_in_the_transaction_of_its_row(client: ClientFixture, sql: Sql) -> None:
    schema = client.settings.schema_name()
    await sql.execute(
        f"""CREATE TABLE public.signup (email text);
            CREATE FUNCTION public.welcome() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                PERFORM {schema}.submit('images.resize', jsonb_build_object('path', NEW.email)); RETURN NEW; END $$;
            CREATE TRIGGER welcome AFTER INSERT ON public.signup FOR EACH ROW EXECUTE FUNCTION public.welcome()"""
    )
    transaction = sql.transaction()
    await transaction.start()
    await sql.execute("INSERT INTO public.signup VALUES ('lost@example.org')")
    await transaction.rollback()
    await sql.execute("INSERT INTO public.signup SELECT 'n' || n FROM generate_series(1, 3) AS n")
    assert sorted(record["args"] for record in await sql.fetch("SELECT args FROM job")) == [
        b'{"path":"n1"}', b'{"path":"n2"}', b'{"path":"n3"}',
    ]  # fmt: skip


async def test_a_role_with_no_more_than_the_function_can_submit_and_nothing_else(
    client: ClientFixture, sql: Sql
) -> None:
    schema = client.settings.schema_name()
    role = f"shop_{new_id().hex()[:12]}"
    await sql.execute(f"CREATE ROLE {role}; GRANT USAGE ON SCHEMA {schema} TO {role}")
    try:
        await sql.execute(f"SET ROLE {role}")
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match="function submit"):
            await submit(sql, "images.resize", {"path": "a"})
        await sql.execute(
            f"RESET ROLE; GRANT EXECUTE ON FUNCTION submit(text, jsonb, jsonb) TO {role}; SET ROLE {role}"
        )
        # A table of the session in the place of the cluster's would otherwise get the job, with the rights of the maker.
        await sql.execute("CREATE TEMP TABLE submit_rule AS SELECT 1 AS args_bytes; CREATE TEMP TABLE job (id uuid)")
        job_id = await submit(sql, "images.resize", {"path": "a"}, idempotency_key="k")
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await sql.fetchval(f"SELECT count(*) FROM {schema}.job")
    finally:
        await sql.execute(f"RESET ROLE; DROP OWNED BY {role}; DROP ROLE {role}")
    assert await client.rows() == {job_id.bytes: "HELD"}


async def test_an_unserved_job_is_held_or_refused_as_asked(client: ClientFixture, sql: Sql) -> None:
    assert (await row(sql, await submit(sql, "images.resize", {"path": "a"}, priority="critical")))["state"] == "HELD"
    error = await refused(sql, "images.resize", {"path": "a"}, priority="critical", on_unserved="raise")
    assert isinstance(error, asyncpg.ObjectNotInPrerequisiteStateError)


async def test_agents_get_a_notice_with_the_commit_and_only_for_what_is_due(client: ClientFixture, sql: Sql) -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()
    listener = await client.connect()
    await listener.add_listener(client.settings.schema_name(), lambda *notice: heard.put_nowait(str(notice[3])))
    for options in ({"after": 60}, {"notify": False}):
        await submit(sql, "images.resize", {"path": "a"}, **options)
    transaction = sql.transaction()
    await transaction.start()
    await submit(sql, "images.resize", {"path": "a"})
    await transaction.rollback()
    async with sql.transaction():
        for _ in range(3):
            await submit(sql, "pay", {"employee": 1}, lane="payroll")
        assert heard.empty()
    assert await asyncio.wait_for(heard.get(), PATIENCE_SECONDS) == "payroll 4"
    await listener.fetchval("SELECT 1")
    assert heard.empty()
    await listener.close()
