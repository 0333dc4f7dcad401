"""From a call of ``submit`` to an order: resolve the handler, encode and check the arguments, check the options.

Everything that can be wrong with the input is found here, before anything leaves the process. The order of the checks:
handler, arguments (encoding, size, signature), options, due time, lane.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

from jobmaster.client.bucket_group import Placed
from jobmaster.client.handler_lookup import Plan, Plans, arguments_mapping
from jobmaster.client.options import BulkOptions, SubmitOptions, Terms, checked_terms
from jobmaster.client.submit_router import IntakeDesk, Line, Order
from jobmaster.clock import Clock, new_id
from jobmaster.codec import decode_entry, encode_args, encode_entry
from jobmaster.model.errors import InvalidArguments
from jobmaster.model.job import Durability, Entry, NewJob, Receipt
from jobmaster.settings.model import ClusterSettings


class Started(NamedTuple):
    """A submit on its way to a bucket."""

    job_id: bytes
    entry: bytes
    line: Line
    future: asyncio.Future[Placed]


class Submitter:
    """Checks submits and hands them to the intake desk."""

    def __init__(self, settings: ClusterSettings, plans: Plans, desk: IntakeDesk, clock: Clock) -> None:
        self.plans = plans
        self.desk = desk
        self._clock = clock
        self._limits = settings.limits
        self._args_max = settings.limits.args_bytes
        self._durability = settings.jobs.durability
        self._on_full = settings.jobs.on_full
        self._lines: dict[str, Line] = {}

    def start(self, handler: Callable[..., Any] | str, args: object) -> Started | None:
        """A submit without options (due now, into a bucket, with the handler's lane and priority), put on its way without
        a further coroutine: at 200,000 submits a second each of those counts. ``None``: take the long way."""
        plan = self.plans.local(handler)
        if plan is None or (line := self._lines.get(plan.name)) is None or self.desk.gate.shut:
            return None
        data = self.encode(plan, args)
        job_id = new_id()
        entry = encode_entry(Entry(job_id, 1, plan.name, data))
        return Started(job_id, entry, line, line.gathering.put(entry, len(entry)))

    async def elsewhere(self, started: Started, placed: Placed) -> Placed:
        """Where a started submit goes that no bucket took."""
        return await self.desk.elsewhere(started.entry, placed, started.line, self._on_full)

    async def is_unserved(self, started: Started) -> bool:
        """No agent has a bucket for a started submit that has gone to the master."""
        group = started.line.group
        return await self.desk.seems_unserved(group.lane, group.priority, decode_entry(started.entry).handler)

    async def submit(self, handler: Callable[..., Any] | str, args: object, options: SubmitOptions) -> Receipt:
        """One job, the long way. See ``Cluster.submit``."""
        order, connection = await self._order(handler, args, options)
        if connection is not None:
            return await self._within(connection, order)
        receipt = await self.desk.place(order)
        if not options:
            self._learn(handler, order)
        return receipt

    async def submit_within(
        self, connection: Any, handler: Callable[..., Any] | str, args: object, options: SubmitOptions
    ) -> tuple[Receipt, Order]:
        """One job inside the caller's transaction, and the order it became."""
        order, _ = await self._order(handler, args, options)
        return await self._within(connection, order), order

    def encode(self, plan: Plan, args: object) -> bytes:
        """Encoded arguments, checked for size and (when the handler is declared here) against its signature."""
        named = args if type(args) is dict else arguments_mapping(args)
        handler = plan.handler
        data = encode_args(named, handler is None or handler.mappings)
        if len(data) > self._args_max:
            raise InvalidArguments(
                f"the arguments of handler {plan.name!r} have {len(data)} bytes, the limit is {self._args_max}",
                hint="send a reference to large data, or raise limits.args",
            )
        if handler is not None:
            handler.check(data)
            for name in handler.texts:
                if type(named.get(name)) is bytes:
                    raise InvalidArguments(
                        f"handler {plan.name!r}: argument {name!r} is text, and bytes were given",
                        hint="decode them first; bytes travel as base64, for a parameter declared as bytes",
                    )
        return data

    def terms(self, options: SubmitOptions | BulkOptions) -> Terms:
        """The options, checked."""
        return checked_terms(options, self._limits, self._clock.wall_us())

    async def _order(
        self, handler: Callable[..., Any] | str, args: object, options: SubmitOptions
    ) -> tuple[Order, Any]:
        """The order of one job, and the connection that was given with it."""
        unregistered = bool(options.get("allow_unregistered"))
        plan = await self.plans.find(handler, allow_unregistered=unregistered)
        data = self.encode(plan, args)
        if plan.handler is None:
            await self.plans.check(plan, data, allow_unregistered=unregistered)
        terms = self.terms(options)
        job = NewJob(
            id=terms.job_id or new_id(),
            priority=int(terms.priority or plan.priority),
            lane=terms.lane or plan.lane,
            handler=plan.name,
            args=data,
            headers=terms.headers,
            due_us=terms.due_us,
        )
        order = Order(
            job=job,
            durability=terms.durability or self._durability,
            on_full=terms.on_full or self._on_full,
            allow_volatile=terms.allow_volatile,
            key=terms.key,
            own_id=terms.job_id is not None,
            refuses_unserved=terms.refuses_unserved,
        )
        return order, terms.connection

    def _learn(self, handler: Callable[..., Any] | str, order: Order) -> None:
        """The next plain submit of the handler can go the short way, if this one went into a bucket."""
        plan = self.plans.local(handler)
        if plan is not None and (line := self.desk.known_line(order)) is not None:
            self._lines[plan.name] = line

    async def _within(self, connection: Any, order: Order) -> Receipt:
        """The row joins the caller's transaction: it exists when, and only if, the caller commits."""
        await self.desk.check_served(order.job.lane)
        await self.desk.refuse_unserved(order)
        job, known = order.job, False
        if order.key is not None:
            job, known = await self.desk.resolve_key(order, order.key)
        written = await self.desk.master.insert_held_in(connection, [job])
        if job.id in written.refused and order.own_id:
            await self.desk.compare(job)
        duplicate = known or job.id not in written.accepted
        if not duplicate:
            self.desk.telemetry.jobs_submitted[Durability.TRANSACTION] += 1
        unserved = not duplicate and await self.desk.seems_unserved(job.lane, job.priority, job.handler)
        return Receipt(job.id, Durability.TRANSACTION, None, duplicate, unserved)
