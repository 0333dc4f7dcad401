"""Clients: jobs of every kind, submitted by the product's own ``Cluster``, and submitted again when no answer came."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import TYPE_CHECKING, Any

from jobmaster.client.cluster import Cluster
from jobmaster.client.jobs.changes import ChangeOptions
from jobmaster.codec import encode_entry
from jobmaster.handlers import Fail, Handlers, JobContext, Snooze
from jobmaster.model.errors import JobMasterError, NotFound, OutcomeUnknown
from jobmaster.model.job import Entry, Priority
from jobmaster.ports import ReplyStatus
from tests.simulation.checks.audit import GUARDED, Audit, Job
from tests.simulation.runtime.event_loop import PROCESS
from tests.simulation.store.sim_store import SimStore
from tests.simulation.workload.invalid_jobs import INVALID_KINDS, raw_of

if TYPE_CHECKING:
    from tests.simulation.history import History

KINDS = (
    "quick", "quick", "quick", "short", "short", "long", "flaky", "doomed", "fenced", "fenced", "fenced long", "later",
    "far", "master", "keyed", "keyed", "twice", "twice", "twice fenced", "once", "once", "once by handler", "cancelled",
    "cancelled", "called off", "called off", "called off", "put later", "put later", "put later", "run now",
    "moved", "expiring", "snoozing", "snoozing", "failing", "given up", "slow", "slow", "slow stopped", "never in time",
    *INVALID_KINDS,
)  # fmt: skip
"""Most of them in every history."""
JOBS_MIN = 21
FENCED = ("fenced", "fenced long", "twice fenced")
CHANGED_KINDS = ("put later", "run now", "moved")
"""They get new values while they wait."""
ONCE = ("once", "once by handler")
SLOW = ("slow", "slow stopped", "never in time")
"""Their first runs, or all, take longer than their ``complete_time``."""
COMPLETE_SECONDS = 0.5
SUBMITS_MAX = 12
_OTHERS = {"once by handler": "once", "step": "step", "failing step": "step", GUARDED: GUARDED}
"""Handlers of other kinds of jobs than most."""
HANDLERS = Handlers()


class Failure(Exception):
    """An attempt that is meant to fail."""


class Down(Failure):
    """The resource of a circuit breaker is down."""


class Hopeless(Failure):
    """One that the rules of the handlers give up on."""


async def run_attempt(job_id: bytes, token: int, attempt: int, snoozes: int) -> int:
    """Every handler: takes its time, then decides its job's end, fails or returns its token."""
    process = PROCESS.get()
    assert process is not None
    history = process.history
    live = process.parts.bucket_worker.job_table.get(job_id)
    owned = live.claimed_list.owned.fence if live is not None and live.entry.token == token else None
    place = (None, None) if owned is None else (owned.bucket_id, owned.epoch)
    job: Job = history.audit.jobs[job_id]
    identity = (job_id, token, *place)
    of_kind = "fenced" if job.kind in FENCED else _OTHERS.get(job.kind, "plain")
    subjects = [("handler", job.handler or of_kind), ("lane", "default")]
    if live is not None:
        subjects.append(("priority", Priority(live.claimed_list.owned.priority).label))
    limited = bool(job.uses)
    borrowed = live is not None and live.limited is not None and live.limited.borrowed
    fenced = (limited and not borrowed) or job.kind in FENCED
    history.audit.hits["limit: start with a lent permit"] += borrowed
    history.audit.started(process, identity, subjects, fenced=fenced, once=job.kind in ONCE)
    if limited:
        excused = job_id in history.audit.forgotten or history.audit.clocks_jumped or history.audit.words_lost
        history.audit.limits.began(process, identity, job.uses, excused=excused)
        before = [each for each in job.earlier if not history.audit.forgotten & {each, job_id}]
        history.audit.limits.in_order(job_id, before, history.master.statements.tables.jobs)
    try:
        if job.seconds:
            # A slow job is slow for its agent, not for the next one.
            await asyncio.sleep(job.seconds / 2 ** (job.starts - 1) if job.kind.startswith("slow") else job.seconds)
    finally:
        history.audit.limits.ended(identity, job.uses)
    history.trace.note(history.loop.now, process.name, "ends", job_id.hex()[-6:], f"token {token}")
    if snoozes < job.snoozes:
        raise Snooze(job.pause, "as it was told")
    if job.kind == GUARDED and history.resource_is_down:
        raise Down("the resource is down")
    if job.kind in ("failing", "failing step"):
        raise Fail("as it was told")
    if job.kind == "given up":
        raise Hopeless("as it was told")
    if attempt <= job.fails:
        raise Failure("as it was told")
    return token


@HANDLERS.job(name="plain", timeout=20, max_attempts=3, backoff=0.1, backoff_max=0.4, give_up_on=Hopeless)
async def plain(ctx: JobContext) -> int:
    return await run_attempt(ctx.job_id_bytes, ctx.token, ctx.attempt, ctx.snoozes)


@HANDLERS.job(name="fenced", timeout=20, max_attempts=3, backoff=0.1, backoff_max=0.4, start="fenced")
async def fenced(ctx: JobContext) -> int:
    return await run_attempt(ctx.job_id_bytes, ctx.token, ctx.attempt, ctx.snoozes)


@HANDLERS.job(name="once", timeout=20, delivery="at_most_once")
async def once(ctx: JobContext) -> int:
    return await run_attempt(ctx.job_id_bytes, ctx.token, ctx.attempt, ctx.snoozes)


@HANDLERS.job(name="step", timeout=20, max_attempts=3, backoff=0.1, backoff_max=0.4)
async def step(ctx: JobContext, before: Any = None) -> int:
    return await run_attempt(ctx.job_id_bytes, ctx.token, ctx.attempt, ctx.snoozes)


async def isolated(job_id: bytes, token: int, attempt: int, snoozes: int) -> int | Exception:
    """The same in a worker process."""
    try:
        return await run_attempt(job_id, token, attempt, snoozes)
    except (Failure, Snooze, Fail) as error:
        return error


class Clients:
    """One process that hands in jobs.

    Args:
        chance: the stream of the workload.
    """

    def __init__(
        self,
        history: History,
        cluster: Cluster,
        stores: dict[str, SimStore],
        chance: Random,
        new_id: Callable[[], bytes],
    ) -> None:
        self._history = history
        self._audit: Audit = history.audit
        self._cluster = cluster
        self._stores = stores
        self._chance = chance
        self._new_id = new_id
        self._loop = history.loop
        self.busy = 0

    async def run(self, seconds: float) -> None:
        """Hand in jobs for some time."""
        chance = self._chance
        # An owner cannot complete a bucket with an outcome that the master refuses for its value, and a move waits for that.
        kinds = KINDS if self._history.mover is None else [kind for kind in KINDS if kind not in INVALID_KINDS]
        kinds = chance.sample(kinds, chance.randint(JOBS_MIN, len(kinds)))
        async with asyncio.TaskGroup() as group:
            for kind in kinds:
                self.busy += 1
                group.create_task(self._life(kind, seconds * chance.random()), name="client")

    async def _life(self, kind: str, wait: float) -> None:
        try:
            await asyncio.sleep(wait)
            job = self._new(kind)
            if kind in INVALID_KINDS:
                await self._slip_in(job)
                return
            if not await self._submit(job, self._options(job)):
                return
            if kind.startswith("twice"):
                await self._again_elsewhere(job)
            if kind in ("cancelled", "called off"):
                await self._cancel(job)
            if kind in CHANGED_KINDS:
                await self._change(job)
        finally:
            self.busy -= 1

    def _new(self, kind: str) -> Job:
        chance = self._chance
        job = Job(self._new_id(), kind)
        self._audit.jobs[job.id] = job
        if kind in ("short", "fenced", "twice", *ONCE):
            job.seconds = chance.choice((0.0, 0.005, 0.05, 0.2, 0.7))
        elif kind in ("long", "fenced long", "cancelled"):
            job.seconds = 0.3 + 1.0 * chance.random()
        elif kind in SLOW:
            job.seconds = COMPLETE_SECONDS * (1.2 + 2.0 * chance.random())
        job.fails = {"flaky": chance.randint(1, 2), "doomed": 99}.get(kind, 0)
        if kind == "snoozing":  # a short pause is spent in the bucket, a long one in the master
            job.snoozes, job.pause = chance.randint(1, 2), chance.choice((0.02, 1.0))
        job.key = f"key-{chance.randint(1, 2)}" if kind == "keyed" else ""
        return job

    def _options(self, job: Job) -> dict[str, Any]:
        chance = self._chance
        options: dict[str, Any] = {"job_id": job.id}
        if size := chance.choice((0, 0, 0, 300, 1000)):
            options["metadata"] = {"carried": "x" * size}
        if job.kind == "later":
            options["after"] = 0.1 + 0.5 * chance.random()
        elif job.kind == "far":
            options["after"] = 0.9 + 0.6 * chance.random()
        elif job.kind in CHANGED_KINDS:
            options["after"] = chance.choice((0.0, 0.3, 0.6, 1.2)) + 0.4 * chance.random()
        elif job.kind == "called off":
            options["after"] = 0.5 + 0.7 * chance.random()
        elif job.kind == "expiring":
            options["expires"] = 0.05 + 0.6 * chance.random()
        elif job.kind == "once":
            options["delivery"] = "at_most_once"
        elif job.kind in SLOW:
            options |= {"complete_time": COMPLETE_SECONDS, "cancel_slow": job.kind == "slow stopped"}
        elif job.kind == "keyed":
            options["idempotency_key"] = job.key
        if job.kind == "master" or (
            job.kind in ("flaky", "fenced", "called off", *CHANGED_KINDS) and chance.random() < 0.4
        ):
            options["durability"] = "master"
        if job.kind in ("quick", "far") and chance.random() < 0.3:
            options["priority"] = "high"
        return options

    async def _submit(self, job: Job, options: dict[str, Any]) -> bool:
        """Sent again under the same id until there is an answer; False when there was none to the end."""
        handler = fenced if job.kind in FENCED else once if job.kind == "once by handler" else plain
        for _ in range(SUBMITS_MAX):
            call = asyncio.ensure_future(self._cluster.submit(handler, {}, **options))
            if not self._history.nemesis.quiet and self._chance.random() < 0.02:
                self._loop.call_later(0.004 * self._chance.random(), call.cancel)
            try:
                receipt = await call
            except (JobMasterError, asyncio.CancelledError) as error:
                self._history.trace.note(
                    self._loop.now, "client", "submit fails", job.id.hex()[-6:], type(error).__name__
                )
                await asyncio.sleep(0.05 + 0.3 * self._chance.random())
                continue
            if receipt.id_bytes != job.id:  # another job holds the key
                self._audit.hits["duplicate key"] += 1
                return False
            self._audit.acknowledged(job, str(receipt.level))
            return True
        return False

    async def _slip_in(self, job: Job) -> None:
        """An entry that cannot be stored or decoded, as from a foreign client. It is sent once: if the answer is lost,
        it was not acknowledged."""
        if await self.put(raw_of(job)):
            self._audit.acknowledged(job, "agent")

    async def _again_elsewhere(self, job: Job) -> None:
        """The same job once more into another bucket, as by a client that gave its first answer up."""
        await asyncio.sleep(0.2 * self._chance.random() ** 3)
        await self.put(encode_entry(Entry(job.id, 1, "fenced" if job.kind in FENCED else "plain", b"{}")))

    async def put(self, raw: bytes) -> bool:
        """Straight into some bucket; True when the store has it."""
        buckets = sorted(
            (
                b
                for b in self._history.master.statements.tables.buckets.values()
                if b.state == "ACTIVE" and b.priority == 3
            ),
            key=lambda b: b.id,
        )
        if not buckets:
            return False
        bucket = self._chance.choice(buckets)
        try:
            answer = await self._stores[bucket.store].submit(
                bucket.id, [raw], high_water_jobs=1000, high_water_bytes=10**6, skew_ms_max=3_600_000
            )
        except JobMasterError:
            return False
        return answer.status is ReplyStatus.OK

    async def _cancel(self, job: Job) -> None:
        seconds = 0.5 if job.kind == "called off" else 0.8
        await asyncio.sleep(seconds * self._chance.random() ** 2)
        job.cancelled = True
        for _ in range(3):
            try:
                await self._cluster.cancel(job.id)
            except NotFound:
                await asyncio.sleep(0.1)
            except JobMasterError:
                await asyncio.sleep(0.2)
            else:
                job.cancelled_at = self._loop.now
                return

    async def _change(self, job: Job) -> None:
        """New values for a job that waits; asked again, with another time, while there is no answer. A call without an answer
        may still take effect, also after a later one."""
        await asyncio.sleep(0.8 * self._chance.random() ** 2)
        for _ in range(4):
            options = ChangeOptions()
            due_us = 0
            if job.kind == "moved":
                options["priority"] = "high"
            else:
                after = 0.0 if job.kind == "run now" else 0.3 + 0.9 * self._chance.random()
                options["after"] = after
                due_us = self._audit.now_us() + int(after * 1e6)
            try:
                answer = await self._cluster.change(job.id, **options)
            except JobMasterError as error:
                self._audit.hits[f"change: {type(error).__name__}"] += 1
                if isinstance(error, OutcomeUnknown):
                    job.due_unknown_us.append(due_us)
                await asyncio.sleep(0.1 + 0.2 * self._chance.random())
            else:
                self._audit.changed(job, answer)
                return


Life = Callable[[], Coroutine[Any, Any, None]]
