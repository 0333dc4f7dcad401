"""From a call of ``submit`` to an order: resolve the handler, encode and check the arguments, check the options.

Everything that can be wrong with the input is found here, before anything leaves the process. The order of the checks:
handler, arguments (encoding, size, signature), options, due time, lane.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jobmaster.client.durability import NEEDED
from jobmaster.client.intake import IntakeDesk, Line, Order
from jobmaster.client.options import BulkOptions, SubmitOptions, Terms, checked_terms
from jobmaster.client.plans import Plan, Plans, arguments_mapping
from jobmaster.clock import Clock, new_id
from jobmaster.codec import encode_args, encode_entry
from jobmaster.model.errors import InvalidArguments, OutcomeUnknown
from jobmaster.model.job import Durability, Entry, Level, NewJob, Receipt
from jobmaster.settings.model import ClusterSettings

NO_ARGS = b"{}"


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

    async def submit(self, handler: Callable[..., Any] | str, args: object, options: SubmitOptions) -> Receipt:
        """One job. See ``Cluster.submit``."""
        plan = self.plans.local(handler)
        if plan is not None and not options:
            data = self.encode(plan, args)
            line = self._lines.get(plan.name) or await self._line_of(plan)
            if line is not None:
                return await self._quick(plan, data, line)
        order, connection = await self._order(handler, args, options)
        if connection is not None:
            return await self._within(connection, order)
        try:
            return await self.desk.place(order)
        except OutcomeUnknown as error:
            raise OutcomeUnknown(error.message, job_ids=[order.job.id]) from error

    async def submit_within(
        self, connection: Any, handler: Callable[..., Any] | str, args: object, options: SubmitOptions
    ) -> tuple[Receipt, Order]:
        """One job inside the caller's transaction, and the order it became."""
        order, _ = await self._order(handler, args, options)
        return await self._within(connection, order), order

    def encode(self, plan: Plan, args: object) -> bytes:
        """Encoded arguments, checked for size and (when the handler is declared here) against its signature."""
        data = encode_args(arguments_mapping(args)) if args else NO_ARGS if args is None else self._empty(args)
        if len(data) > self._args_max:
            raise InvalidArguments(
                f"the arguments of handler {plan.name!r} have {len(data)} bytes, the limit is {self._args_max}",
                hint="send a reference to large data, or raise limits.args_bytes",
            )
        if plan.handler is not None:
            plan.handler.check(data)
        return data

    def _empty(self, args: object) -> bytes:
        arguments_mapping(args)
        return NO_ARGS

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
        )
        return order, terms.connection

    async def _line_of(self, plan: Plan) -> Line | None:
        """Where plain submits of the handler gather; ``None`` when the cluster's default is a committed row."""
        if self._durability is Durability.MASTER:
            return None
        line = await self.desk.line(plan.lane, int(plan.priority), NEEDED[self._durability])
        self._lines[plan.name] = line
        return line

    async def _quick(self, plan: Plan, data: bytes, line: Line) -> Receipt:
        """A submit without options: due now, into a bucket, with the handler's lane and priority."""
        desk = self.desk
        if desk.gate.shut:
            await desk.enter(self._on_full)
        job_id = new_id()
        entry = encode_entry(Entry(job_id, 1, plan.name, data))
        try:
            placed = await line.gathering.put(entry, len(entry))
            if placed.level is None:
                placed = await desk.elsewhere(entry, placed, line, self._on_full)
        except OutcomeUnknown as error:
            raise OutcomeUnknown(error.message, job_ids=[job_id]) from error
        return Receipt(job_id, placed.level or Level.MASTER, placed.bucket_id)

    async def _within(self, connection: Any, order: Order) -> Receipt:
        """The row joins the caller's transaction: it exists when, and only if, the caller commits."""
        await self.desk.check_served(order.job.lane)
        job, known = order.job, False
        if order.key is not None:
            job, known = await self.desk.resolve_key(order, order.key)
        written = await self.desk.master.insert_held_in(connection, [job])
        if job.id in written.refused and order.own_id:
            await self.desk.compare(job)
        duplicate = known or job.id not in written.accepted
        return Receipt(job.id, Level.TRANSACTION, None, duplicate)
