"""``Cluster.inspect.explain`` and ``failures``: every cause for which a job does not run, and failed jobs by kind."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from jobmaster.client.inspect import failures as failures_module
from jobmaster.client.signals.wait import signal
from jobmaster.codec import encode_error
from jobmaster.encryption import PayloadCipher
from jobmaster.handlers import Handlers
from jobmaster.handlers.flow.breaker import Breaker
from jobmaster.handlers.flow.limits import Limit
from jobmaster.model.errors import InputError, NotFound
from jobmaster.model.inspection.explanation import WaitCause
from jobmaster.model.inspection.views import AgentStatistics
from jobmaster.model.job import ErrorInfo
from jobmaster.settings.model import Encryption
from tests.integration.client.conftest import OpenCluster
from tests.integration.client.fixture import ClientFixture, pay, resize


async def changed(client: ClientFixture, sql: str, *values: Any) -> None:
    connection = await client.connect()
    try:
        await connection.execute(sql, *values)
    finally:
        await connection.close()


async def causes(client: ClientFixture, job: Any) -> list[WaitCause]:
    return [cause.cause for cause in (await client.cluster.inspect.explain(job)).causes]


async def test_what_waits_in_the_master(client: ClientFixture) -> None:
    submit, explain = client.cluster.submit, client.cluster.inspect.explain
    later = await submit(resize, {"path": "a"}, after=3600)
    (cause,) = (await explain(later)).causes
    assert cause.cause is WaitCause.DUE_LATER
    assert cause.until is not None
    assert cause.until > datetime.now(UTC) + timedelta(minutes=55)
    assert cause.remedy == f"jobmaster job run-now {later.id}"
    for _ in range(2):
        await (await submit(resize, {"path": "a"}, after=3600)).run_now()
    await later.run_now()
    await client.master.members.renew(client.agent.id, 600.0, AgentStatistics(ended_per_second=0.5))
    (cause,) = (await explain(str(later.id))).causes
    assert (cause.cause, cause.ahead) == (WaitCause.QUEUE, 2)
    assert "2 job(s) of its lane and priority are due before it, about 4" in cause.text
    failed = await submit(resize, {"path": "a"}, after=3600)
    error = encode_error(ErrorInfo(type="ValueError", message="no"))
    await changed(client, "UPDATE job SET attempt = 1, error = $2 WHERE id = $1", failed.id, error)
    (cause,) = (await explain(failed)).causes
    assert (cause.cause, "attempt 1 has failed (ValueError)" in cause.text) == (WaitCause.RETRY, True)


async def test_what_no_agent_takes(client: ClientFixture) -> None:
    submit = client.cluster.submit
    low = await submit(resize, {"path": "a"}, priority="low", after=3600)
    assert await causes(client, low) == [WaitCause.DUE_LATER, WaitCause.NO_BUCKET]
    strange = await submit("nobody.has_it", {}, allow_unregistered=True, durability="master", after=3600)
    assert await causes(client, strange) == [WaitCause.DUE_LATER, WaitCause.NO_HANDLER]
    newer = await submit(resize, {"path": "a"}, complete_time=60.0, after=3600)
    await changed(client, "UPDATE agent SET capabilities = '{}'")
    assert await causes(client, newer) == [WaitCause.DUE_LATER, WaitCause.CAPABILITY]
    await changed(client, "UPDATE bucket SET state = 'FROZEN'")
    found = await client.cluster.inspect.explain(newer)
    assert found.causes[1].cause is WaitCause.FROZEN
    assert "jobmaster bucket unfreeze" in (found.causes[1].remedy or "")


async def test_what_is_paused_cancelled_or_behind_another_job(client: ClientFixture) -> None:
    cluster = client.cluster
    job = await cluster.submit(pay, {"employee": 1}, after=3600, tags=["audit"])
    await cluster.pause(tag="audit", reason="until noon", actor="ann", timeout=0)
    explained = await cluster.inspect.explain(job)
    assert [cause.cause for cause in explained.causes[:2]] == [WaitCause.DUE_LATER, WaitCause.PAUSED]
    assert (explained.causes[1].by, explained.causes[1].remedy) == ("ann", "jobmaster resume tag audit")
    assert "tag 'audit' is paused by ann: until noon" in explained.text
    registry = Handlers()
    registry.job(name="pay", breaker=Breaker("bank"))(lambda employee: None)
    (handler,) = registry
    assert handler.options.breaker is not None
    await client.master.breakers.declare(client.agent.id, [handler.options.breaker.rule], {"pay": "bank"})
    await cluster.breakers.open("bank", reason="down")
    other = await cluster.submit(pay, {"employee": 2}, after=3600)
    assert WaitCause.BREAKER in await causes(client, other)
    async with cluster.batch("night") as batch:
        member = await batch.submit(resize, {"path": "a"}, after=3600)
    await changed(client, "UPDATE batch SET cancel_requested = true")
    assert WaitCause.BATCH_CANCELLED in await causes(client, member)
    first, second = [await cluster.submit(resize, {"path": "a"}, ordering_key="o:1", after=3600) for _ in range(2)]
    ordered = (await cluster.inspect.explain(second)).causes[-1]
    assert (ordered.cause, ordered.by) == (WaitCause.ORDERING_KEY, str(first.id))
    assert await causes(client, first) == [WaitCause.DUE_LATER]


async def test_what_waits_for_a_signal_or_a_confirmation_runs_or_has_ended(client: ClientFixture) -> None:
    cluster = client.cluster
    waiting = await cluster.submit(resize, {"path": "a"}, wait_for=signal("order:17"))
    explained = (await cluster.inspect.explain(waiting)).causes[0]
    assert (explained.cause, explained.by) == (WaitCause.SIGNAL, "order:17")
    bucket = client.agent.buckets["default", 3][0]
    run = await cluster.submit(resize, {"path": "a"}, after=3600)
    move = "UPDATE job SET state = $2::text::job_state, bucket_id = $3, bucket_epoch = 1 WHERE id = $1"
    await changed(client, move, run.id, "PROCESSING", UUID(bytes=bucket.id))
    running = (await cluster.inspect.explain(run)).causes[0]
    assert (running.cause, running.by) == (WaitCause.RUNNING, "hand")
    await cluster.cancel(run)
    assert await causes(client, run) == [WaitCause.CANCEL_REQUESTED, WaitCause.RUNNING]
    await changed(client, "UPDATE job SET cancel_requested = false WHERE id = $1", run.id)
    await changed(client, move, run.id, "WAITING", UUID(bytes=bucket.id))
    assert await causes(client, run) == [WaitCause.CONFIRMATION]
    ended = await cluster.submit(resize, {"path": "a"}, after=3600)
    await ended.cancel()
    (cause,) = (await cluster.inspect.explain(ended)).causes
    assert (cause.cause, cause.remedy) == (
        WaitCause.ENDED,
        f"jobmaster job retry {ended.id} runs it again as a new job",
    )
    with pytest.raises(NotFound):
        await cluster.inspect.explain(UUID(int=7))


async def test_what_lies_in_a_bucket(client: ClientFixture, open_cluster: OpenCluster) -> None:
    cluster = client.cluster
    jobs = [await cluster.submit(resize, {"path": "a"}) for _ in range(3)]
    beside = sum(job.bucket_id == jobs[0].bucket_id for job in jobs) - 1
    (cause,) = (await cluster.inspect.explain(jobs[0])).causes
    assert (cause.cause, cause.ahead, cause.by) == (WaitCause.BUCKET, beside, "hand")
    (bucket,) = [each for each in client.agent.buckets["default", 3] if each.id == jobs[0].bucket_id]
    await client.agent.claim(bucket)
    await client.master.members.renew(client.agent.id, 600.0, AgentStatistics(slots=4, running=4, queued=9))
    (cause,) = (await cluster.inspect.explain(jobs[0])).causes
    assert (cause.cause, cause.ahead) == (WaitCause.SLOT, 9)
    assert "4 of 4 slots were busy" in cause.text
    assigned = await cluster.submit(pay, {"employee": 1}, after=3600)
    move = "UPDATE job SET state = 'ASSIGNED', bucket_id = $2, bucket_epoch = 1, token = 2, due_at = NULL WHERE id = $1"
    await changed(client, move, assigned.id, UUID(bytes=bucket.id))
    insert = "INSERT INTO limit_state (name, key, waiting_bucket, waiting_at) VALUES ('cards', 'acme', $1, clock_timestamp())"
    await changed(client, insert, UUID(bytes=bucket.id))
    await changed(client, "INSERT INTO job_limit (name, set_running, set_at) VALUES ('cards', 3, clock_timestamp())")
    stranger = await open_cluster(handlers=Handlers())
    limited = (await stranger.inspect.explain(assigned)).causes[0]
    assert (limited.cause, limited.by) == (WaitCause.LIMIT, "cards")
    assert "the limit 'cards' (key 'acme') has no permit for it: 0 of 3 permits are taken" in limited.text
    assert await causes(client, assigned) == [WaitCause.SLOT], "its handler is declared here, and takes no permit"
    away = await open_cluster(stores={})
    assert (await away.inspect.explain(assigned)).causes[0].cause is WaitCause.STORE_SILENT
    await changed(client, "UPDATE bucket SET state = 'FROZEN'")
    await changed(client, "UPDATE agent SET lease_until = clock_timestamp() - interval '1 s'")
    assert await causes(client, assigned) == [WaitCause.FROZEN, WaitCause.OWNER_SILENT, WaitCause.SLOT]
    await client.master.members.end_agent(client.agent.id, dead=True, reason="test")
    assert await causes(client, assigned) == [WaitCause.BUCKET_LOST]


async def test_failed_jobs_are_counted_by_what_they_have_in_common(
    client: ClientFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures_module, "READS", 2)
    cluster = client.cluster
    messages: list[tuple[Any, str]] = [
        (resize, "order 1\nmore"),
        (resize, "order 22"),
        (pay, "order 3"),
        (resize, "no paper"),
        (resize, "order 4"),
    ]
    made = []
    for handler, message in messages:
        args: Any = {"path": "a"} if handler is resize else {"employee": 1}
        made.append((await cluster.submit(handler, args, after=3600)).id)
        error = encode_error(ErrorInfo(type="shop.Refused", message=message))
        await changed(client, "UPDATE job SET state = 'FAILED', error = $2 WHERE id = $1", made[-1], error)
    found = await cluster.inspect.failures()
    assert (found.jobs, found.complete) == (5, True)
    assert found.groups[0].jobs == 3
    assert (found.groups[0].handler, found.groups[0].line) == ("images.resize", "order #")
    first = found.groups[0]
    assert (first.error_type, first.sample) == ("shop.Refused", made[4])
    assert first.first_at is not None
    assert first.last_at is not None
    assert first.first_at <= first.last_at
    assert [view.id for view in await cluster.jobs(error=first.fingerprint)] == [made[4], made[1], made[0]]
    assert len((await cluster.inspect.failures(limit=1)).groups) == 1
    assert [group.handler for group in (await cluster.inspect.failures(handler=pay)).groups] == ["pay"]
    assert (await cluster.inspect.failures(until=60, since=120)).groups == ()
    monkeypatch.setattr(failures_module, "ROWS_MAX", 2)
    assert not (await cluster.inspect.failures()).complete
    with pytest.raises(InputError, match="from 1 to 1000"):
        await cluster.inspect.failures(limit=0)


KEYS = {"k": base64.b64encode(b"k" * 32).decode()}


def limited(*, secret: tuple[str, ...] = ()) -> Handlers:
    """``pay`` with a limit for each employee."""
    registry = Handlers()
    registry.job(name="pay", limit=Limit("cards", running=3, key="{employee}"), secret=secret)(lambda employee: None)
    return registry


@pytest.mark.parametrize("client_settings", [{"encryption": Encryption(keys=KEYS, active="k")}], indirect=True)
async def test_sealed_jobs_are_explained_and_grouped(client: ClientFixture, open_cluster: OpenCluster) -> None:
    keyed = await open_cluster(handlers=limited())
    plain = await open_cluster(handlers=limited(), settings=replace(client.settings, encryption=Encryption()))
    bucket = UUID(bytes=client.agent.buckets["default", 3][0].id)
    mine, other = [await keyed.submit("pay", {"employee": name}, after=3600) for name in ("acme", "bolt")]
    move = "UPDATE job SET state = 'ASSIGNED', bucket_id = $2, bucket_epoch = 1, token = 2, due_at = NULL WHERE id = $1"
    for job in (mine, other):
        await changed(client, move, job.id, bucket)
    insert = "INSERT INTO limit_state (name, key, waiting_bucket, waiting_at) VALUES ('cards', 'acme', $1, clock_timestamp())"
    await changed(client, insert, bucket)
    await changed(client, "INSERT INTO job_limit (name, set_running, set_at) VALUES ('cards', 3, clock_timestamp())")

    async def first(cluster: Any, job: Any) -> WaitCause:
        return (await cluster.inspect.explain(job)).causes[0].cause  # type: ignore[no-any-return]

    assert await first(plain, mine) is WaitCause.LIMIT, "its key is not known here"
    assert await first(keyed, mine) is WaitCause.LIMIT
    assert await first(keyed, other) is not WaitCause.LIMIT, "its arguments are opened, and have another key"
    cipher = PayloadCipher(KEYS, "k")
    held = (
        "UPDATE job SET state = 'HELD', bucket_id = NULL, bucket_epoch = NULL, attempt = 1, "
        "due_at = now() + interval '1 h', error = $2 WHERE id = $1"
    )
    for job in (mine, other):
        error = cipher.seal_error("pay", job.id.bytes, ErrorInfo(type="Refused", message="no money"))
        await changed(client, held, job.id, encode_error(error))
    (group,) = (await plain.inspect.failures(state="HELD")).groups
    assert (group.jobs, group.line) == (2, "$sealed")
    assert await plain.count(error=group.fingerprint) == (2, True)


async def test_values_of_secret_arguments_are_cut_out_of_groups(
    client: ClientFixture, open_cluster: OpenCluster
) -> None:
    later = await open_cluster(handlers=limited(secret=("employee",)))
    args: list[Any] = [{"employee": "sesame-opens-17"}, {"employee": "sesame-opens-18"}]
    jobs = [await later.submit("pay", each, after=3600) for each in args]
    for job, each in zip(jobs, args, strict=True):
        error = ErrorInfo(type="Refused", message=f"{each['employee']} is no key of 3")
        await changed(client, "UPDATE job SET attempt = 1, error = $2 WHERE id = $1", job.id, encode_error(error))
    (raw,) = (await client.cluster.inspect.failures(state="HELD")).groups
    assert raw.line == "sesame-opens-# is no key of #", "the handler declares no secret there"
    (shown,) = (await later.inspect.failures(state="HELD")).groups
    assert (shown.line, shown.jobs) == ("*** is no key of #", 2)
    assert shown.fingerprint == raw.fingerprint
