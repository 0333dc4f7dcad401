"""Signals in the master: jobs that wait, delivery to all and to one, repeats, kept signals, time-outs."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest

from jobmaster.clock import new_id
from jobmaster.codec import decode_headers, encode_headers
from jobmaster.master.flow import signals as signals_module
from jobmaster.model.errors import InputError, Refused
from jobmaster.model.flow.signal import OutgoingSignal, SignalStatus, SignalStep
from jobmaster.model.job import Headers, JobState, SignalWait
from jobmaster.ports import RecordKind
from tests.integration.postgres.fixture import DUE, LANE, PRIORITY, SCHEMA, MasterFixture, new_job, uuids
from tests.integration.postgres.jobs.attempts.test_confirmation import waiting as awaits_confirmation

KEY = "order:17 'ü' {x}"
PAYLOAD = b'{"paid":true,"expires_us":5,"at_most_once":true,"signal":{"key":"other"},"text":"\\u0000\\"\\\\"}'


def headers(key: str = KEY, **fields: Any) -> bytes:
    other = {name: fields.pop(name) for name in ("tags", "metadata", "expires_us") if name in fields}
    return encode_headers(Headers(signal=SignalWait(key=key, **fields), **other))


async def wait(db: MasterFixture, key: str = KEY, *, count: int = 1, due_us: int = 0, **fields: Any) -> list[bytes]:
    ids = [new_id() for _ in range(count)]
    rows = [new_job(id_, headers=headers(key, **fields), due_us=due_us) for id_ in ids]
    assert (await db.master.signals.hold_waiting(rows)).accepted == set(ids)
    return ids


def outgoing(
    key: str = KEY, payload: bytes = PAYLOAD, *, to: str = "all", keep: float = 0.0, id_: bytes | None = None
) -> OutgoingSignal:
    return OutgoingSignal(id_ or new_id(), key, payload, to, keep)


async def send(db: MasterFixture, signal: OutgoingSignal | None = None) -> SignalStep:
    return await db.master.signals.send(signal or outgoing(), "test")


async def received(db: MasterFixture, job_id: bytes) -> str | None:
    got = (await db.view(job_id)).headers.received
    return None if got is None else got.payload


async def states(db: MasterFixture, ids: list[bytes]) -> list[str]:
    return [await db.state(id_) for id_ in ids]


async def test_a_job_waits_until_the_signal_of_its_key_and_takes_the_payload_along(db: MasterFixture) -> None:
    (job_id,), (other,) = await wait(db), await wait(db, "order:18")
    assert (await db.master.onboarding.onboard(db.fence, LANE, PRIORITY, 60.0, 10)).entries == []
    signal = outgoing()
    assert await send(db, signal) == (SignalStatus.SENT, 1, True, None)
    view = await db.view(job_id)
    assert (view.state, view.token, view.attempt) == (JobState.HELD, 1, 0)
    assert view.headers.received is not None
    assert view.headers.received.payload.encode() == PAYLOAD
    assert view.headers.expires_us is None, "the payload is no part of the options"
    assert await db.state(other) == "WAITING"
    (entry,) = (await db.master.onboarding.onboard(db.fence, LANE, PRIORITY, 60.0, 10)).entries
    assert (entry.id, entry.token) == (job_id, 2)
    assert decode_headers(entry.headers).received == view.headers.received
    assert await db.sql.fetchval("SELECT is_at_most_once($1)", entry.headers) is False


async def test_a_signal_without_a_receiver_leaves_nothing(db: MasterFixture) -> None:
    for _ in range(3):
        assert await send(db) == (SignalStatus.SENT, 0, True, None)
    assert await db.sql.fetchval("SELECT count(*) FROM signal") == 0


async def test_all_is_every_job_and_one_is_the_first(db: MasterFixture) -> None:
    ids = await wait(db, count=4)
    assert (await send(db, outgoing(to="one"))).delivered == 1
    assert await states(db, ids) == ["HELD", "WAITING", "WAITING", "WAITING"]
    assert (await send(db)).delivered == 3
    assert (await send(db)).delivered == 0


async def test_a_signal_to_all_reaches_the_jobs_in_portions(db: MasterFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals_module, "PORTION", 2)
    ids = await wait(db, count=5)
    signal = outgoing()
    assert [(await send(db, signal))[1:3] for _ in range(3)] == [(2, False), (4, False), (5, True)]
    assert await send(db, signal) == (SignalStatus.REPEATED, 5, True, None)
    assert await states(db, ids) == ["HELD"] * 5


async def test_a_signal_whose_sender_has_died_is_finished_once(
    db: MasterFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signals_module, "PORTION", 2)
    ids, signal = await wait(db, count=5), outgoing()
    assert not (await send(db, signal)).finished
    assert not await db.master.signals.finish_sent(60.0), "its sender may come back"
    assert [await db.master.signals.finish_sent(0.0) for _ in range(3)] == [True, True, False]
    assert await states(db, ids) == ["HELD"] * 5
    assert await send(db, signal) == (SignalStatus.REPEATED, 5, True, None)
    assert {await received(db, id_) for id_ in ids} == {PAYLOAD.decode()}


async def test_a_key_of_an_open_transaction_does_not_delay_the_other_signals(
    db: MasterFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signals_module, "PORTION", 1)
    first, second = await wait(db, "a", count=2), await wait(db, "b", count=2)
    await send(db, outgoing("a"))
    await send(db, outgoing("b"))
    row = [uuids([new_id()]), [PRIORITY], [LANE], ["handler"], [b"{}"], [headers("a")], [0]]
    async with db.open_transaction("signals/hold_waiting", *row) as commit:
        assert await db.master.signals.finish_sent(0.0)
        assert await states(db, [*first, *second]) == ["HELD", "WAITING", "HELD", "HELD"]
        assert not await db.master.signals.finish_sent(0.0)
        await commit()
    assert await db.master.signals.finish_sent(0.0)


async def test_the_same_id_again_delivers_nothing_new(db: MasterFixture) -> None:
    (first,) = await wait(db)
    signal = outgoing()
    assert await send(db, signal) == (SignalStatus.SENT, 1, True, None)
    (later,) = await wait(db)
    assert await send(db, signal) == (SignalStatus.REPEATED, 1, True, None)
    assert await states(db, [first, later]) == ["HELD", "WAITING"]
    for other in (signal._replace(payload=b"1"), signal._replace(key="other"), signal._replace(recipients="one")):
        assert (await send(db, other)).status is SignalStatus.CONFLICT
    assert await db.state(later) == "WAITING"


async def test_senders_that_race_for_one_reach_as_many_jobs_as_there_are_signals(db: MasterFixture) -> None:
    ids = await wait(db, count=5)
    steps = await asyncio.gather(*(send(db, outgoing(payload=b"%d" % n, to="one")) for n in range(8)))
    assert sorted(step.delivered for step in steps) == [0, 0, 0, 1, 1, 1, 1, 1]
    assert await states(db, ids) == ["HELD"] * 5
    got = [await received(db, id_) for id_ in ids]
    assert len(set(got)) == 5, "no signal reached two jobs"


async def test_a_sender_waits_for_a_job_that_is_about_to_wait(db: MasterFixture) -> None:
    """Without the lock of the key, a signal that is sent before the commit of the job is kept, and the job never gets it."""
    job_id = new_id()
    rows = [uuids([job_id]), [PRIORITY], [LANE], ["handler"], [b"{}"], [headers()], [0]]
    async with db.open_transaction("signals/hold_waiting", *rows) as commit:
        step = await db.after_lock("send_signal", send(db, outgoing(keep=60.0)), commit)
    assert step.delivered == 1
    assert await db.state(job_id) == "HELD"


async def test_a_job_waits_for_a_sender_that_is_about_to_keep_its_signal(db: MasterFixture) -> None:
    args = (uuids([new_id()])[0], KEY, PAYLOAD, "one", 60.0, 10, "test", 10)
    async with db.open_transaction("signals/send", *args) as commit:
        (job_id,) = await db.after_lock("hold_waiting", wait(db), commit)
    assert await db.state(job_id) == "HELD"
    assert await received(db, job_id) == PAYLOAD.decode()


@pytest.mark.parametrize("isolation", ["repeatable_read", "serializable"])
async def test_one_snapshot_for_a_whole_transaction_is_refused(db: MasterFixture, isolation: Any) -> None:
    """Without that, a signal that is kept after the snapshot is not seen by the job, and the job waits for ever."""
    connection = await db.connect()
    for write in ("hold", "send"):
        transaction = connection.transaction(isolation=isolation)
        await transaction.start()
        await connection.fetchval("SELECT count(*) FROM job")
        await send(db, outgoing(keep=60.0))
        if write == "hold":
            call: Any = db.master.signals.hold_waiting_in(connection, [new_job(new_id(), headers=headers())])
        else:
            call = connection.fetchval("SELECT signal($1)", KEY)
        with pytest.raises((Refused, asyncpg.FeatureNotSupportedError), match="could miss each other"):
            await call
        await transaction.rollback()
    await connection.close()
    assert await db.sql.fetchval("SELECT count(*) FROM job") == 0


async def test_an_id_of_two_keys_at_the_same_time_is_of_one(db: MasterFixture) -> None:
    """The lock of the key does not keep them apart."""
    same = new_id()
    (first,), (other,) = await wait(db), await wait(db, "other")
    args = (uuids([same])[0], KEY, PAYLOAD, "all", 0.0, 10, "test", 10)
    async with db.open_transaction("signals/send", *args) as commit:
        step = await db.after_lock("send_signal", send(db, outgoing("other", id_=same)), commit)
    assert step.status is SignalStatus.CONFLICT
    assert await states(db, [first, other]) == ["HELD", "WAITING"]


async def test_a_cancel_that_comes_first_is_seen_by_the_signal_that_waits(db: MasterFixture) -> None:
    first, second = await wait(db, count=2)
    async with db.open_transaction("requests/cancel", uuids([first])[0], "test") as commit:
        step = await db.after_lock("send_signal", send(db, outgoing(to="one")), commit)
    assert step.delivered == 1, "the next job got it"
    assert await states(db, [first, second]) == ["CANCELLED", "HELD"]


async def test_a_kept_signal_to_one_reaches_the_first_job_to_come_and_no_other(db: MasterFixture) -> None:
    for payload in (b"1", b"2"):
        step = await send(db, outgoing(payload=payload, to="one", keep=60.0))
        assert (step.delivered, step.kept_until_us is not None) == (0, True)
    assert [kept.payload_json for kept in await db.master.signals.kept(KEY, 10)] == [b"1", b"2"]
    ids = [(await wait(db, due_us=DUE))[0] for _ in range(3)]
    assert [await received(db, id_) for id_ in ids] == ["1", "2", None]
    assert await states(db, ids) == ["HELD", "HELD", "WAITING"]
    assert [view.due_us for view in [await db.view(id_) for id_ in ids]] == [DUE] * 3
    assert await db.master.signals.kept(None, 10) == []


async def test_a_kept_signal_to_all_reaches_every_job_until_a_newer_one_or_its_end(db: MasterFixture) -> None:
    (before,) = await wait(db)
    assert (await send(db, outgoing(payload=b"1", keep=60.0))).delivered == 1
    (first,) = await wait(db)
    assert (await send(db, outgoing(payload=b"2", keep=60.0))).delivered == 0
    ids = [before, first, *await wait(db), *await wait(db)]
    assert [await received(db, id_) for id_ in ids] == ["1", "1", "2", "2"]
    assert [kept.payload_json for kept in await db.master.signals.kept(KEY, 10)] == [b"2"]
    await db.sql.execute("UPDATE signal SET kept_until = clock_timestamp() WHERE kept_until IS NOT NULL")
    (late,) = await wait(db)
    assert await db.state(late) == "WAITING"
    assert await db.master.signals.end_kept(10) == 1
    assert await db.master.signals.end_kept(10) == 0


async def test_the_number_of_kept_signals_is_bounded(db: MasterFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals_module, "KEPT_MAX", 2)
    for n in range(2):
        assert (await send(db, outgoing(f"k{n}", keep=60.0))).status is SignalStatus.SENT
    (job_id,) = await wait(db, "k2")
    assert (await send(db, outgoing("k2", keep=60.0))).status is SignalStatus.FULL
    assert await db.state(job_id) == "WAITING", "nothing was delivered"
    assert (await send(db, outgoing("k2"))).delivered == 1
    assert (await send(db, outgoing("k1", keep=60.0))).status is SignalStatus.SENT, "it takes the place of another"
    await db.sql.execute("UPDATE signal SET kept_until = clock_timestamp() WHERE key = 'k0'")
    assert (await send(db, outgoing("k3", keep=60.0))).status is SignalStatus.SENT, "what is over does not count"


async def test_a_signal_that_comes_too_late_is_none(db: MasterFixture) -> None:
    ended, runs, bound = await wait(db, seconds=0.0), await wait(db, seconds=0.0, run=True), new_id()
    patient = await wait(db, seconds=60.0)
    past = headers(run=True, seconds=60.0, expires_us=1_000_000)  # its own expiry is over, whatever the option says
    await db.master.signals.hold_waiting([new_job(bound, headers=past)])
    assert await db.master.maintenance.expire_unconfirmed(10) == 0, "none of them has run"
    assert await db.master.signals.expire_waits(10) == (2, 1)
    assert await db.master.signals.expire_waits(10) == (0, 0)
    view = await db.view(ended[0])
    assert view.state is JobState.EXPIRED
    assert view.error is not None
    assert view.error.reason == "no_signal"
    assert await states(db, [*runs, bound, *patient]) == ["HELD", "EXPIRED", "WAITING"]
    assert await received(db, runs[0]) is None
    assert (await send(db)).delivered == 1


async def test_a_time_out_leaves_what_waits_for_a_confirmation_alone(db: MasterFixture) -> None:
    job_id = await awaits_confirmation(db, 0.0)
    assert await db.master.signals.expire_waits(10) == (0, 0)
    assert (await send(db, outgoing("handler"))).delivered == 0
    assert await db.state(job_id) == "WAITING"
    assert await db.master.maintenance.expire_unconfirmed(10) == 1


async def test_a_signal_that_came_first_is_seen_by_the_time_out(db: MasterFixture) -> None:
    (job_id,) = await wait(db, seconds=0.0)
    args = (uuids([new_id()])[0], KEY, PAYLOAD, "all", 0.0, 10, "test", 10)
    async with db.open_transaction("signals/send", *args) as commit:
        assert await db.master.signals.expire_waits(10) == (0, 0), "locked by the signal"
        await commit()
    assert await db.master.signals.expire_waits(10) == (0, 0)
    assert await db.state(job_id) == "HELD"


async def test_the_same_id_twice_is_one_job(db: MasterFixture) -> None:
    row = new_job(new_id(), headers=headers())
    await db.master.signals.hold_waiting([row])
    await send(db, outgoing(to="one", keep=60.0))
    await send(db, outgoing(to="one", keep=60.0))
    assert (await db.master.signals.hold_waiting([row])).refused == {row.id}
    assert len(await db.master.signals.kept(KEY, 10)) == 1, "a row that was there takes no signal"


async def test_rows_of_signals_are_forgotten_unless_they_are_kept_or_unfinished(
    db: MasterFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signals_module, "PORTION", 1)
    await wait(db, "a")
    await wait(db, "b", count=2)
    await send(db, outgoing("a"))
    await send(db, outgoing("b"))
    await send(db, outgoing("c", keep=60.0))
    await db.sql.execute("UPDATE signal SET sent_at = clock_timestamp() - interval '2 days'")
    assert await db.master.maintenance.forget(RecordKind.SIGNALS, 1, 10) == 1
    assert await db.sql.fetchval("SELECT array_agg(key ORDER BY key) FROM signal") == ["b", "c"]


async def test_what_jobs_wait_for_is_listed_by_key(db: MasterFixture) -> None:
    await wait(db, count=3)
    await wait(db, "other")
    await awaits_confirmation(db)
    assert [(one.key, one.jobs) for one in await db.master.signals.waiting(None, 10)] == [(KEY, 3), ("other", 1)]
    assert [(one.key, one.jobs) for one in await db.master.signals.waiting("other", 10)] == [("other", 1)]


async def test_a_commit_wakes_the_leader_for_what_is_due(db: MasterFixture) -> None:
    heard: list[Any] = []
    listener = await db.connect()
    await listener.add_listener("jobmaster_test", lambda *args: heard.append(args[-1]))
    await wait(db, count=2)
    await wait(db, due_us=DUE)
    await send(db)
    await listener.execute("SELECT 1")  # notifications come with the next answer
    await listener.close()
    assert heard == [f"{LANE} {PRIORITY}"]


async def test_a_job_that_finds_its_signal_wakes_the_leader_unless_that_is_not_wanted(db: MasterFixture) -> None:
    heard: list[Any] = []
    listener = await db.connect()
    await listener.add_listener("jobmaster_test", lambda *args: heard.append(args[-1]))
    await send(db, outgoing(keep=60.0))
    await wait(db, due_us=DUE)
    row = [uuids([new_id()]), [PRIORITY], [LANE], ["handler"], [b"{}"], [headers()], [0]]
    await db.sql.execute("SELECT hold_waiting($1, $2, $3, $4, $5, $6, $7, false)", *row)
    await listener.execute("SELECT 1")
    assert heard == []
    await wait(db, count=3)
    await listener.execute("SELECT 1")
    await listener.close()
    assert heard == [f"{LANE} {PRIORITY}"]


async def test_a_transaction_of_the_caller_is_needed(db: MasterFixture) -> None:
    row = new_job(new_id(), headers=headers())
    with pytest.raises(InputError, match="not in a transaction"):
        await db.master.signals.hold_waiting_in(db.sql, [row])
    async with asyncio.timeout(30):
        connection = await db.connect(search_path="public")
        async with connection.transaction():
            assert (await db.master.signals.hold_waiting_in(connection, [row])).accepted == {row.id}
        await connection.close()
    assert await db.state(row.id) == "WAITING"


async def test_a_signal_in_sql_is_sent_with_the_commit(db: MasterFixture) -> None:
    ids = await wait(db, count=2)
    connection = await db.connect(search_path="public")
    send_ = f"SELECT {SCHEMA}.signal($1, $2, $3)"
    same = '{"to": "one", "signal_id": "019a9f3c-55d1-7000-8000-000000000000"}'
    transaction = connection.transaction()
    await transaction.start()
    assert await connection.fetchval(send_, KEY, '{"a": 1}', "{}") == 2
    await transaction.rollback()
    assert await states(db, ids) == ["WAITING"] * 2
    for _ in range(2):
        assert await connection.fetchval(send_, KEY, '{"a": 1}', same) == 1
    assert await states(db, ids) == ["HELD", "WAITING"]
    assert await received(db, ids[0]) == '{"a":1}'
    assert await connection.fetchval(send_, "other", "7", '{"keep_for": "10 minutes"}') == 0
    assert [kept.payload_json for kept in await db.master.signals.kept("other", 10)] == [b"7"]
    for key, payload, options, problem in (
        ('a"b', "1", "{}", "double quote or a backslash"),
        ("", "1", "{}", "is empty"),
        (KEY, "1", '{"too": "one"}', "did you mean 'to'"),
        (KEY, "1", '{"to": "some"}', "'all' or 'one'"),
        (KEY, "1", '{"keep_for": 0}', "more than 0"),
        (KEY, "1", '{"signal_id": "x"}', "is not a UUID"),
        (KEY, '"' + "x" * 20_000 + '"', "{}", "the limit is 16384"),
        (KEY, "2", same, "another key, payload"),
    ):
        with pytest.raises(asyncpg.PostgresError) as caught:
            await connection.fetchval(send_, key, payload, options)
        assert problem in f"{caught.value} {caught.value.hint}"
    await connection.close()
    assert await states(db, ids) == ["HELD", "WAITING"]
