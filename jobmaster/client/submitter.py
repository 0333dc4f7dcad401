"""From a call of ``submit`` to a request: resolve the handler, encode and check the arguments, check the options.

Everything that can be wrong with the input is found here, before anything leaves the process. The order of the checks:
handler, arguments (encoding, size, signature), options, due time, lane.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, cast

import msgspec

from jobmaster.client.bucket_choice import Placement
from jobmaster.client.caller_connections import CallerConnection, Driver, caller_connection, run_awaited
from jobmaster.client.handler_lookup import (
    HandlerLookup,
    ResolvedHandler,
    arguments_mapping,
    check_declared,
    headers_for,
)
from jobmaster.client.options import (
    BulkOptions,
    CheckedOptions,
    FreshId,
    SubmitOptions,
    check_submit_options,
    refuse_in_transaction,
    with_ordering_key,
)
from jobmaster.client.sql_submit import SubmitCall, submit_call, unique_option
from jobmaster.client.submit_router import SubmitBatcher, SubmitRequest, SubmitRouter
from jobmaster.client.uniqueness.unique_submits import (
    check_debounce,
    headers_with_key,
    no_key_and_wait,
    no_key_in_a_batch,
    receipt_of,
    without_key,
)
from jobmaster.clock import Clock, new_id
from jobmaster.codec import decode_entry, decode_headers, encode_args, encode_entry, encode_trace
from jobmaster.encryption import SealKind, cipher_of
from jobmaster.model import ids
from jobmaster.model.errors import InputError, InvalidArguments
from jobmaster.model.flow.uniqueness import OnConflict, SubmitAnswer, UniqueOutcome, UniqueRule, UniqueSubmit
from jobmaster.model.job import Durability, Entry, NewJob, Receipt
from jobmaster.model.trace_context import CONTEXT_BYTES_MAX, TraceContext
from jobmaster.ports import SubmitSpan, SubmitTraces
from jobmaster.settings.model import ClusterSettings


class StoredArguments(bytes):
    """The arguments of an earlier job as they are stored. They are submitted as they are: an encoder would write some values
    of pydantic a second time, and other programs that retry the job would not."""


class Started(msgspec.Struct, frozen=True):
    """A submit that waits for a bucket's answer. One for each job: a named tuple takes four times as long to make."""

    job_id: bytes
    entry: bytes
    batcher: SubmitBatcher
    placement: Awaitable[Placement]


class TracedStart(Started, frozen=True):
    """One with a span that is recorded."""

    span: SubmitSpan

    def answered(self, future: asyncio.Future[Placement]) -> None:
        """The bucket has answered, or the caller waits no more."""
        error = asyncio.CancelledError() if future.cancelled() else future.exception()
        if error is not None:
            self.span.failed(error)
        elif future.result().level is not None:
            self.ended(future.result())

    def ended(self, placed: Placement) -> None:
        """The job is stored."""
        self.span.stored(ids.text(self.job_id), (placed.level or Durability.MASTER).value)
        self.span.end()


class PreparedSubmit(NamedTuple):
    """A checked submit that a driver of the caller's has to run."""

    job_id: bytes
    call: SubmitCall
    known: bool
    """The caller's own id has a row."""
    unserved: bool
    unique: UniqueRule | None


class SubmitChecks:
    """Checks the input of submits. Calls no server and needs no event loop."""

    def __init__(
        self,
        settings: ClusterSettings,
        handler_lookup: HandlerLookup,
        clock: Clock,
        traces: SubmitTraces | None = None,
    ) -> None:
        self.traces = traces
        self.handler_lookup = handler_lookup
        self._clock = clock
        self._limits = settings.limits
        self._args_max = settings.limits.args_bytes
        self.cipher = cipher_of(settings.encryption.keys, settings.encryption.active, settings.encryption.require)
        """Opens payloads, and seals those of jobs when it has an active key."""

    def encode(self, resolved: ResolvedHandler, args: object) -> bytes:
        """Encoded arguments, checked for size and (when the handler is declared here) against its signature."""
        if type(args) is dict:
            named: Mapping[str, object] = args
        elif type(args) is StoredArguments:
            return self._checked_again(resolved, args)
        else:
            named = arguments_mapping(args)
        handler = resolved.handler
        mappings = handler is None or handler.mappings
        if mappings and handler is not None and handler.models:
            named = handler.plain(named)
        data = encode_args(named, mappings)
        if len(data) > self._args_max:
            raise self._too_large(resolved, data)
        if handler is not None:
            handler.check(data)
            for name in handler.texts:
                if type(named.get(name)) is bytes:
                    raise InvalidArguments(
                        f"handler {resolved.name!r}: argument {name!r} is text, and bytes were given",
                        hint="decode them first; bytes travel as base64, for a parameter declared as bytes",
                    )
        return data

    def sealed(self, handler: str, job_id: bytes | None, data: bytes) -> bytes:
        """Encoded arguments as they are stored.

        Args:
            job_id: ``None``: an idempotency key decides which job it is.

        Raises:
            InputError: as ``refuse_plain``.
        """
        if self.cipher is None:
            return data
        if not self.cipher.seals:
            self.refuse_plain(handler, "a submit without encryption.active")
            return data
        return self.cipher.seal(SealKind.ARGUMENTS, handler, job_id, data)

    def refuse_plain(self, handler: str, maker: str) -> None:
        """``InputError`` where jobs of the handler need sealed arguments, and ``maker`` (a noun) seals none."""
        if self.cipher is not None and self.cipher.requires(handler):
            raise InputError(
                f"{maker} does not seal arguments, and encryption.require names the handler {handler!r}",
                hint="have the job of another handler submit it, or take the handler out of encryption.require",
            )

    def encode_template(self, resolved: ResolvedHandler, args: Mapping[str, object], later: frozenset[str]) -> bytes:
        """Encoded arguments of which ``later`` get their values when the job is made; their names are checked now."""
        handler = resolved.handler
        if handler is not None:
            handler.check_names(args)
            if handler.models:
                plain = handler.plain({name: value for name, value in args.items() if name not in later})
                args = {name: value if name in later else plain[name] for name, value in args.items()}
        data = encode_args(args)
        if len(data) > self._args_max:
            raise self._too_large(resolved, data)
        return data

    def _checked_again(self, resolved: ResolvedHandler, args: StoredArguments) -> bytes:
        """Encoded arguments of an earlier job, checked against what holds now."""
        data = bytes(args)
        if len(data) > self._args_max:
            raise self._too_large(resolved, data)
        if resolved.handler is not None:
            resolved.handler.check(data)
        return data

    def _too_large(self, resolved: ResolvedHandler, data: bytes) -> InvalidArguments:
        return InvalidArguments(
            f"the arguments of handler {resolved.name!r} have {len(data)} bytes, the limit is {self._args_max}",
            hint="send a reference to large data, or raise limits.args",
        )

    def checked(self, options: SubmitOptions | BulkOptions, *, calls_function: bool = False) -> CheckedOptions:
        """The options, checked.

        Args:
            calls_function: the job is submitted by the SQL function, which has an option of its own.
        """
        if self.traces is not None:
            options = _in_trace(options, self.traces)
        checked = check_submit_options(options, self._limits, self._clock.wall_us())
        if checked.notify is not None and not calls_function:
            raise InputError(
                "'notify' is an option of a submit by the SQL function, and this one does not call it",
                hint="leave it out; it belongs to connection= of psycopg, psycopg2, SQLAlchemy or Django, and to statement()",
            )
        return checked

    def checked_for(
        self, resolved: ResolvedHandler, options: SubmitOptions | BulkOptions, *, calls_function: bool = False
    ) -> CheckedOptions:
        """The options, checked, also against what the handler declares if that is known."""
        checked = self.checked(options, calls_function=calls_function)
        check_declared(resolved, options)
        return checked._replace(headers=headers_for(resolved, checked.headers))

    def in_order(self, resolved: ResolvedHandler, data: bytes, checked: CheckedOptions) -> CheckedOptions:
        """The options of a job with the ordering key that its handler gives it, unless the submit has given one.

        Args:
            data: the encoded arguments.

        Raises:
            InputError: the key cannot be computed from the arguments, or does not go with an option.
        """
        if resolved.ordering is None or checked.is_ordered:
            return checked
        try:
            key = resolved.ordering(data)
        except InputError as error:
            raise type(error)(f"handler {resolved.name!r}: {error.message}", hint=error.hint) from None
        return checked if key is None else with_ordering_key(checked, key, self._limits)

    def statement(self, handler: Callable[..., Any] | str, args: object, options: SubmitOptions) -> SubmitCall:
        """A call of the SQL function. What this program does not declare itself is checked by the database."""
        if options.get("connection") is not None:
            raise InputError("a statement has no connection", hint="run it on the connection: execute(sql, params)")
        refuse_in_transaction(options)
        resolved = self.handler_lookup.local(handler)
        self.refuse_plain(str(handler) if resolved is None else resolved.name, "a statement")
        if resolved is None:
            data = self.encode(self.handler_lookup.undeclared(handler), args)
            checked = self.checked(options, calls_function=True)
            known: dict[str, object] = {} if checked.unique is None else {"unique": unique_option(checked.unique)}
            return submit_call(str(handler), data, options, known)
        data, checked = self.encode(resolved, args), self.checked_for(resolved, options, calls_function=True)
        checked = self.in_order(resolved, data, checked)
        level, lane = checked.priority or resolved.priority, checked.lane or resolved.lane
        known = {"priority": int(level), "lane": lane, "checked": True, **_of_headers(checked.headers)}
        if (rule := self.unique_rule(resolved, checked, data, checked.due_us)) is not None:
            known["unique"] = unique_option(rule)
        return submit_call(resolved.name, data, options, known)

    def unique_rule(
        self, resolved: ResolvedHandler, checked: CheckedOptions, args: bytes, due_us: int, *, again: bool = False
    ) -> UniqueRule | None:
        """The uniqueness of a job: that of its submit, else that of its handler. One with an idempotency key has none.

        Args:
            args: of the job, encoded.
            again: it is a job that is submitted once more.
        """
        unique = checked.unique
        if unique is None:
            unique = None if again or checked.key is not None else resolved.unique
        else:
            self.handler_lookup.check_names(resolved, unique)
        if unique is None:
            return None
        rule = unique.rule(args)
        check_debounce(rule, due_us, self._clock.wall_us())
        return rule


class Submitter(SubmitChecks):
    """Checks submits and hands them to the router. Belongs to one event loop."""

    def __init__(
        self,
        settings: ClusterSettings,
        handler_lookup: HandlerLookup,
        router: SubmitRouter,
        clock: Clock,
        traces: SubmitTraces | None = None,
    ) -> None:
        super().__init__(settings, handler_lookup, clock, traces)
        self.router = router
        self._durability = settings.jobs.durability
        self._on_full = settings.jobs.on_full
        self._batchers: dict[str, SubmitBatcher] = {}

    def start(self, handler: Callable[..., Any] | str, args: object) -> Started | None:
        """A submit without options (due now, into a bucket, with the handler's lane and priority), put on its way without
        a further coroutine: at 200,000 submits a second each of those counts. ``None``: use ``submit``."""
        resolved = self.handler_lookup.local(handler)
        if (
            resolved is None
            or (batcher := self._batchers.get(resolved.name)) is None
            or self.router.pending_limit.reached
        ):
            return None
        data = self.encode(resolved, args)
        job_id = new_id()
        entry = encode_entry(Entry(job_id, 1, resolved.name, data))
        return Started(job_id, entry, batcher, batcher.coalescer.answer(entry, len(entry)))

    async def fall_back(self, started: Started, placed: Placement) -> Placement:
        """Place a started submit that no bucket took."""
        return await self.router.fall_back(started.entry, placed, started.batcher, self._on_full)

    async def is_unserved(self, started: Started) -> bool:
        """No agent has a bucket for a started submit that has gone to the master."""
        group = started.batcher.group
        return await self.router.seems_unserved(group.lane, group.priority, decode_entry(started.entry).handler)

    async def submit(self, handler: Callable[..., Any] | str, args: object, options: SubmitOptions) -> Receipt:
        """One job, with every check. See ``Cluster.submit``."""
        caller = None if (given := options.get("connection")) is None else caller_connection(given)
        if caller is not None and caller.driver is not Driver.ASYNCPG:
            return await self._through(caller, handler, args, options)
        if caller is not None:
            refuse_in_transaction(options)
        request, connection = await self._request(handler, args, options)
        request = self._sealed(request)
        if connection is not None:
            return await self._within(connection, request)
        receipt = await self.router.place(request)
        # A unique key is reserved by every submit; headers name what the handler requires.
        if not options and request.unique is None and self._is_plain(request.job.headers):
            self._remember_batcher(handler, request)
        return receipt

    def _is_plain(self, headers: bytes) -> bool:
        """The headers are those that ``start`` gives a job."""
        return not headers

    async def submit_within(
        self, connection: Any, handler: Callable[..., Any] | str, args: object, options: SubmitOptions
    ) -> tuple[Receipt, SubmitRequest]:
        """One job inside the caller's transaction, and the request that it became."""
        refuse_in_transaction(options)
        request, _ = await self._request(handler, args, options)
        request = self._sealed(request)
        return await self._within(connection, request), request

    def _sealed(self, request: SubmitRequest) -> SubmitRequest:
        if self.cipher is None:
            return request
        job = request.job
        data = self.sealed(job.handler, None if request.key is not None else job.id, job.args)
        return request._replace(job=job._replace(args=data))

    async def job_of(self, handler: Callable[..., Any] | str, args: object, options: SubmitOptions) -> NewJob:
        """The job that a submit would store, with every check; nothing is stored. The uniqueness of its handler is left out:
        that is decided where a key is reserved."""
        request, _ = await self._request(handler, args, options)
        self.refuse_plain(request.job.handler, "a callback")
        await self.router.check_served(request.job.lane)
        return request.job if request.unique is None else request.job._replace(headers=without_key(request.job.headers))

    async def _request(
        self, handler: Callable[..., Any] | str, args: object, options: SubmitOptions, *, calls_function: bool = False
    ) -> tuple[SubmitRequest, Any]:
        """The request of one job, and the connection that was given with it."""
        unregistered = bool(options.get("allow_unregistered"))
        resolved = await self.handler_lookup.find(handler, allow_unregistered=unregistered)
        data = self.encode(resolved, args)
        if resolved.handler is None:
            await self.handler_lookup.check(resolved, data, allow_unregistered=unregistered)
        if type(args) is StoredArguments:  # a retry: the handler may declare other limits by now
            checked = self.checked(options, calls_function=calls_function)
            checked = checked._replace(headers=headers_for(resolved, checked.headers))
        else:
            checked = self.checked_for(resolved, options, calls_function=calls_function)
        checked = self.in_order(resolved, data, checked)
        job = NewJob(
            id=checked.job_id or new_id(),
            priority=int(checked.priority or resolved.priority),
            lane=checked.lane or resolved.lane,
            handler=resolved.name,
            args=data,
            headers=checked.headers,
            due_us=checked.due_us,
        )
        rule = self.unique_rule(resolved, checked, data, job.due_us, again=type(args) is StoredArguments)
        if rule is not None:
            _check_no_other_key(resolved, checked, job)
        request = SubmitRequest(
            job=job if rule is None else job._replace(headers=headers_with_key(job.headers, rule)),
            durability=Durability.MASTER
            if checked.waits or checked.is_ordered
            else checked.durability or self._durability,
            on_full=checked.on_full or self._on_full,
            allow_volatile=checked.allow_volatile,
            key=checked.key,
            unique=rule,
            own_id=checked.job_id is not None and not isinstance(options["job_id"], FreshId),
            refuses_unserved=checked.refuses_unserved,
            waits=checked.waits,
        )
        return request, checked.connection

    def _remember_batcher(self, handler: Callable[..., Any] | str, request: SubmitRequest) -> None:
        """The next plain submit of the handler can use ``start``, if this one went into a bucket."""
        if self.cipher is not None:
            return  # ``start`` seals nothing
        resolved = self.handler_lookup.local(handler)
        if resolved is not None and (batcher := self.router.known_batcher(request)) is not None:
            self._batchers[resolved.name] = batcher

    async def prepare_within(
        self, handler: Callable[..., Any] | str, args: object, options: SubmitOptions
    ) -> PreparedSubmit:
        """One job with every check, as a call of the SQL function that the caller's driver has to run."""
        refuse_in_transaction(options)
        request, _ = await self._request(handler, args, options, calls_function=True)
        job = self._sealed(request).job
        await self.router.check_served(job.lane)
        await self.router.refuse_unserved(request)
        decided: dict[str, object] = {
            "priority": job.priority,
            "lane": job.lane,
            "job_id": ids.text(job.id),
            "checked": True,
            **_of_headers(job.headers),
        }
        if request.unique is not None:
            decided["unique"] = unique_option(request.unique)
        call = submit_call(job.handler, job.args, options, decided)
        known = request.own_id and job.id in await self.router.master.queries.states([job.id])
        unserved = await self.router.seems_unserved(job.lane, job.priority, job.handler)
        return PreparedSubmit(job.id, call, known, unserved, request.unique)

    async def _through(
        self, caller: CallerConnection, handler: Callable[..., Any] | str, args: object, options: SubmitOptions
    ) -> Receipt:
        """The caller's driver runs the SQL function in its transaction."""
        if not caller.awaits:
            raise InputError(
                f"the connection of {caller.driver.value} given with connection= blocks the event loop",
                hint="give an async one, or submit with a SyncCluster: jobmaster.connect_sync()",
            )
        prepared = await self.prepare_within(handler, args, options)
        job_id = await run_awaited(caller, self.router.master.intake.submit_sql, prepared.call)
        return self.accepted_within(prepared, ids.parse(job_id))

    def accepted_within(self, prepared: PreparedSubmit, job_id: bytes) -> Receipt:
        """The receipt of a prepared submit that the driver has run."""
        duplicate = prepared.known or job_id != prepared.job_id
        if not duplicate:
            self.router.telemetry.jobs_submitted[Durability.TRANSACTION] += 1
        answer = None
        if prepared.unique is not None and duplicate:
            debounces = prepared.unique.on_conflict is OnConflict.DEBOUNCE and not prepared.known
            answer = SubmitAnswer.DEBOUNCED if debounces else SubmitAnswer.EXISTING
        unserved = prepared.unserved and not duplicate
        return Receipt(job_id, Durability.TRANSACTION, None, duplicate, unserved, unique_answer=answer)

    async def _within(self, connection: Any, request: SubmitRequest) -> Receipt:
        """The row joins the caller's transaction: it exists when, and only if, the caller commits."""
        await self.router.check_served(request.job.lane)
        await self.router.refuse_unserved(request)
        job, known = request.job, False
        if request.unique is not None:
            return await self._unique_within(connection, request, request.unique)
        if request.key is not None:
            job, known = await self.router.keys.resolve(request.job, request.key)
        master = self.router.master
        insert = master.signals.hold_waiting_in if request.waits else master.intake.insert_held_in
        written = await insert(connection, [job])
        if job.id in written.refused and request.own_id:
            await self.router.compare(job)
        duplicate = known or job.id not in written.accepted
        if not duplicate:
            self.router.telemetry.jobs_submitted[Durability.TRANSACTION] += 1
        unserved = not duplicate and await self.router.seems_unserved(job.lane, job.priority, job.handler)
        return Receipt(job.id, Durability.TRANSACTION, None, duplicate, unserved)

    async def _unique_within(self, connection: Any, request: SubmitRequest, rule: UniqueRule) -> Receipt:
        """The same for a job with a unique key."""
        job = request.job
        answer = await self.router.master.uniqueness.submit_in(connection, UniqueSubmit(job, rule))
        if answer.outcome is UniqueOutcome.KNOWN:
            await self.router.compare(job)
            return Receipt(job.id, Durability.TRANSACTION, None, True)
        receipt = receipt_of(answer, job, rule, Durability.TRANSACTION)
        if receipt.duplicate:
            return receipt
        self.router.telemetry.jobs_submitted[Durability.TRANSACTION] += 1
        return receipt._replace(unserved=await self.router.seems_unserved(job.lane, job.priority, job.handler))


class TracedSubmitter(Submitter):
    """The same with a span around each submit. A class of its own: where traces are off, no submit asks for them."""

    def __init__(
        self,
        settings: ClusterSettings,
        handler_lookup: HandlerLookup,
        router: SubmitRouter,
        clock: Clock,
        traces: SubmitTraces,
    ) -> None:
        super().__init__(settings, handler_lookup, router, clock, traces)
        self._begin = traces.begin
        self._starts = settings.limits.headers_bytes >= CONTEXT_BYTES_MAX

    def start(self, handler: Callable[..., Any] | str, args: object) -> Started | None:
        """As in ``Submitter``, with the trace context as the headers of the job. The span is not the current one meanwhile:
        nothing that could see it runs in the context of the caller."""
        resolved = self.handler_lookup.local(handler)
        if (
            resolved is None
            or not self._starts
            or (batcher := self._batchers.get(resolved.name)) is None
            or self.router.pending_limit.reached
        ):
            return None
        span = self._begin(resolved.name)
        try:
            data = self.encode(resolved, args)
            job_id = new_id()
            entry = encode_entry(Entry(job_id, 1, resolved.name, data, 0, encode_trace(span.context)))
            future = batcher.coalescer.put(entry, len(entry))
        except BaseException as error:
            span.failed(error)
            raise
        started = Started(job_id, entry, batcher, future)
        if span.recorded:
            started = TracedStart(job_id, entry, batcher, future, span)
            future.add_done_callback(started.answered)
        return started

    async def fall_back(self, started: Started, placed: Placement) -> Placement:
        """See ``Submitter``; the span has lasted until now."""
        if not isinstance(started, TracedStart):
            return await super().fall_back(started, placed)
        try:
            placed = await super().fall_back(started, placed)
        except BaseException as error:
            started.span.failed(error)
            raise
        started.ended(placed)
        return placed

    def _is_plain(self, headers: bytes) -> bool:
        given = decode_headers(headers)
        context = None if given.traceparent is None else TraceContext(given.traceparent, given.tracestate)
        return headers == encode_trace(context)

    async def submit(self, handler: Callable[..., Any] | str, args: object, options: SubmitOptions) -> Receipt:
        """See ``Submitter``. A trace context that the caller gives is passed on as it is."""
        if options.get("traceparent") is not None:
            return await super().submit(handler, args, options)
        with self._begin(self._name_of(handler)) as span:
            receipt = await super().submit(handler, args, options)
            span.stored(ids.text(receipt.id), receipt.level.value)
            return receipt

    async def submit_within(
        self, connection: Any, handler: Callable[..., Any] | str, args: object, options: SubmitOptions
    ) -> tuple[Receipt, SubmitRequest]:
        """See ``Submitter``."""
        if options.get("traceparent") is not None:
            return await super().submit_within(connection, handler, args, options)
        with self._begin(self._name_of(handler)) as span:
            receipt, request = await super().submit_within(connection, handler, args, options)
            span.stored(ids.text(receipt.id), receipt.level.value)
            return receipt, request

    def _name_of(self, handler: Callable[..., Any] | str) -> str | None:
        resolved = self.handler_lookup.local(handler)
        if resolved is not None:
            return resolved.name
        return handler if isinstance(handler, str) else None


def _in_trace(options: SubmitOptions | BulkOptions, traces: SubmitTraces) -> SubmitOptions | BulkOptions:
    """The options with the current span, unless they name one."""
    if options.get("traceparent") is not None or (context := traces.context()) is None:
        return options
    traced: Any = {**options, **context._asdict()}
    return cast("SubmitOptions", traced)


def _check_no_other_key(resolved: ResolvedHandler, checked: CheckedOptions, job: NewJob) -> None:
    """``InputError`` for a job that would hold a unique key and cannot."""
    if decode_headers(job.headers).batch:
        raise no_key_in_a_batch(resolved.name)
    if checked.waits:
        raise no_key_and_wait(resolved.name)


def _of_headers(headers: bytes) -> dict[str, str]:
    """Options of the SQL function that the caller need not have given: ordering key and tenant of the handler, the trace."""
    given = decode_headers(headers)
    values = {name: getattr(given, name) for name in ("ordering_key", "traceparent", "tracestate")}
    decided = {name: value for name, value in values.items() if value is not None}
    return decided if given.tenant is None else {**decided, "tenant": given.tenant[0]}
