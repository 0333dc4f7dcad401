"""Transactional handlers, and transactions on the paper master that do what a test says."""

from __future__ import annotations

import asyncio
from typing import Any

from jobmaster.clock import new_id
from jobmaster.codec import decode_error
from jobmaster.handlers import Fail, Handlers, JobContext
from jobmaster.model.errors import Unavailable
from jobmaster.model.job import Conclusion, Entry, ErrorInfo, FinalRow
from jobmaster.settings.model import AgentSettings
from tests.support.bucket_worker_fixture import DOWN, LOST, Gate, WorkerHarness
from tests.unit.agents.execute.test_dispatch import SlowPool

handlers = Handlers()
log: list[str] = []
go = asyncio.Event()


@handlers.job(name="pays", transactional=True, timeout=100, max_attempts=3, backoff=7, backoff_jitter=0.0)
async def pays(ctx: JobContext) -> str:
    async with ctx.transaction() as connection:
        connection.log.append("wrote")
    log.append("left the block")
    await go.wait()
    return "paid"


@handlers.job(name="holds_out", transactional=True, timeout=100)
async def holds_out(ctx: JobContext) -> str:
    async with ctx.transaction():
        pass
    while not go.is_set():
        try:
            await go.wait()
        except asyncio.CancelledError:
            log.append("asked")
    return "after all"


@handlers.job(name="fails_inside", transactional=True, max_attempts=1)
async def fails_inside(ctx: JobContext) -> None:
    async with ctx.transaction():
        raise ValueError("no")


@handlers.job(name="fails_after", transactional=True, max_attempts=1)
async def fails_after(ctx: JobContext) -> None:
    async with ctx.transaction():
        pass
    raise ValueError("no")


@handlers.job(name="copes", transactional=True)
async def copes(ctx: JobContext) -> str:
    try:
        async with ctx.transaction():
            raise ValueError("there already")
    except ValueError:
        return "was there"


class Wrapped(Exception):
    """How middleware reports an error."""


@handlers.job(name="wraps", transactional=True, max_attempts=1)
async def wraps(ctx: JobContext) -> None:
    try:
        async with ctx.transaction():
            pass
    except Unavailable as error:
        raise Wrapped("the job failed") from error


@handlers.job(name="groups", transactional=True, max_attempts=1)
async def groups(ctx: JobContext) -> None:
    async def work() -> None:
        async with ctx.transaction():
            pass

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(work())


@handlers.job(name="decides", transactional=True, max_attempts=1)
async def decides(ctx: JobContext) -> None:
    try:
        async with ctx.transaction():
            pass
    except Unavailable:
        raise Fail("not without the database")  # noqa: B904 - it has the outage as its context


@handlers.job(name="does_without", transactional=True)
async def does_without() -> str:
    return "nothing to do"


@handlers.job(name="twice", transactional=True, max_attempts=1)
async def twice(ctx: JobContext) -> None:
    async with ctx.transaction(), ctx.transaction():
        pass


@handlers.job(name="too_large", transactional=True, max_attempts=1)
async def too_large(ctx: JobContext) -> str:
    async with ctx.transaction():
        return "x" * 1_000_000


@handlers.job(name="exits", transactional=True, max_attempts=1)
async def exits(ctx: JobContext) -> None:
    async with ctx.transaction():
        raise SystemExit(3)


@handlers.job(name="process", transactional=True, mode="process", max_attempts=2)
async def in_process(ctx: JobContext) -> None:
    raise AssertionError("worker processes are not started here")


@handlers.job(name="plain")
async def plain() -> None:
    return None


@handlers.job(name="not_declared", max_attempts=1)
async def not_declared(ctx: JobContext) -> None:
    ctx.transaction()


class FakeTransaction:
    """A transaction on the paper master: its effects are what is committed in ``source.effects``."""

    def __init__(self, source: FakeTransactions) -> None:
        self._source = source
        self._step: Any = None
        self._row: FinalRow
        self.log: list[str] = []

    @property
    def connection(self) -> FakeTransaction:
        return self

    async def write(self, row: FinalRow) -> bool:
        """What the script says of an attempt: a gate before its outcome, an exception at its commit, ..."""
        harness = self._source.harness
        self._step = self._source.script.pop(0) if self._source.script else None
        if isinstance(self._step, Gate):
            self._step.reached.set()
            await self._step.opened.wait()
            self._step = self._step.then
        self._row = row
        there = harness.master.rows.get(row.id)
        return there is None or there.identity == (row.token, row.bucket_id, row.bucket_epoch)

    async def submit(self, handler: str, args: str, options: str) -> None:
        """A message of the outbox is one of the effects."""
        self.log.append(f"{handler} {args} {options}")

    async def commit(self) -> Conclusion:
        """... UNKNOWN after the effect (LOST) or without it (DOWN)."""
        if isinstance(self._step, Exception):
            raise self._step
        if self._step is DOWN:
            return Conclusion.UNKNOWN
        assert (await self._source.harness.master.record_final([self._row])).accepted
        self._source.effects += self.log
        return Conclusion.UNKNOWN if self._step is LOST else Conclusion.COMMITTED

    async def rollback(self) -> None:
        self._source.rolled_back += 1


class FakeTransactions:
    def __init__(self, harness: WorkerHarness) -> None:
        self.harness = harness
        self.script: list[Any] = []
        self.effects: list[str] = []
        self.rolled_back = 0
        self.down = False

    async def begin(self, attempt: str) -> FakeTransaction:
        if self.down:
            raise Unavailable("the master is away")
        return FakeTransaction(self)


class TransactionalHarness(WorkerHarness):
    def __init__(self) -> None:
        super().__init__(handlers, AgentSettings(slots=10))
        self.source = FakeTransactions(self)
        self.pool = SlowPool()
        dispatcher = self.bucket_worker._dispatcher
        dispatcher._transactional._source = self.source
        dispatcher._pool = self.pool  # type: ignore[assignment]
        dispatcher._in_tasks.size = 2

    async def __aenter__(self) -> TransactionalHarness:
        await super().__aenter__()
        return self

    def put(self, *names: str) -> list[Entry]:
        entries = [Entry(new_id(), 1, name, b"{}") for name in names]
        self.submit(self.bucket(), entries)
        return entries

    def batched(self) -> int:
        """Outcomes that went through the reporter's own writes."""
        mine = len(self.source.effects)
        return len(self.master.finals) - mine

    def state(self, entry: Entry) -> str:
        row = self.master.rows.get(entry.id)
        return row.state if row is not None else "none"

    def error(self, entry: Entry) -> ErrorInfo:
        row = next(row for row in self.master.finals if row.id == entry.id)
        assert row.error is not None
        return decode_error(row.error)
