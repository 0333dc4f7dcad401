"""What is known about a handler when a job for it is submitted: checked once, then looked up.

A handler declared in this process is checked against its signature. One that is not is looked up among those that agents
have published; what they published is read again when a name is missing or arguments do not fit, for agents may just have
been redeployed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from jobmaster.client.options import BulkOptions, SubmitOptions, check_slow_run
from jobmaster.client.published_schema import problems
from jobmaster.clock import Clock
from jobmaster.codec import decode_json, headers_of_tenant, headers_requiring
from jobmaster.handlers import CheckedUnique, Handler, Handlers, check_lane, check_name
from jobmaster.handlers.flow.ordering import PublishedOrdering
from jobmaster.handlers.flow.unique import KEY_SHOWS_HINT
from jobmaster.handlers.registry import unknown_handler
from jobmaster.model.agent import HandlerSpec
from jobmaster.model.errors import InputError, InvalidArguments, UnknownHandler
from jobmaster.model.job import Priority
from jobmaster.model.suggestion import did_you_mean
from jobmaster.ports import Queries
from jobmaster.rules.capabilities import Capability
from jobmaster.settings.model import JobDefaults

REREAD_SECONDS = 2.0
"""Least age of the published handlers before a miss reads them again."""
FORGET_SECONDS = 60.0
"""Published handlers are read again after this time in any case."""

UNKNOWN_HINT = "declare it in this process, start an agent that has it, or pass allow_unregistered=True"
"""What a program can do about an unknown handler; the command line has a hint of its own."""


class ResolvedHandler(NamedTuple):
    """How jobs of one handler are submitted when the submit gives no options."""

    name: str
    handler: Handler | None
    """``None``: declared elsewhere."""
    lane: str
    priority: Priority
    timeout_seconds: float | None = None
    complete_seconds: float | None = None
    unique: CheckedUnique | None = None
    ordering: Callable[[bytes], str | None] | None = None
    """Ordering key of a job from its arguments."""
    limited: bool = False
    """It has limits."""
    tenant: str | None = None
    """For whom its jobs run when their submit names no tenant."""
    known: bool = True
    """``False``: neither declared here nor published."""


class HandlerLookup:
    """Handler or name -> how its jobs are submitted."""

    def __init__(self, handlers: Handlers, queries: Queries, defaults: JobDefaults, clock: Clock) -> None:
        self._handlers = handlers
        self._queries = queries
        self._lane = check_lane(defaults.lane)
        self._priority = Priority.parse(defaults.priority)
        self._clock = clock
        self._local: dict[Callable[..., Any] | str, ResolvedHandler] = {}
        self._published: dict[str, HandlerSpec] = {}
        self._read_at: float | None = None

    def local(self, handler: Callable[..., Any] | str) -> ResolvedHandler | None:
        """A handler declared in this process; ``None`` when it is not."""
        try:
            resolved = self._local.get(handler)
        except TypeError:
            return None
        if resolved is not None:
            return resolved
        declared = self._handlers.get(handler) if isinstance(handler, str) else self._handlers.of(handler)
        if declared is None:
            return None
        options = declared.options
        resolved = ResolvedHandler(
            declared.name,
            declared,
            options.lane or self._lane,
            options.priority or self._priority,
            options.timeout_seconds,
            options.complete_seconds,
            options.unique,
            None if options.ordering is None else declared.ordering_key,
            bool(options.limits),
            options.tenant,
        )
        self._local[handler] = self._local[declared.name] = resolved
        return resolved

    async def find(
        self, handler: Callable[..., Any] | str, *, allow_unregistered: bool, hint: str = UNKNOWN_HINT
    ) -> ResolvedHandler:
        """Any handler, declared here or published by agents.

        Args:
            hint: what the caller can do about an unknown handler.

        Raises:
            UnknownHandler: neither declared here nor published, and not ``allow_unregistered``.
        """
        resolved = self.local(handler)
        if resolved is not None:
            return resolved
        undeclared = self.undeclared(handler)
        name = undeclared.name
        spec = await self._spec(name)
        if spec is None:
            if allow_unregistered:
                return undeclared
            raise unknown_handler(
                name,
                [*self._handlers.names(), *self._published],
                hint,
            )
        priority = self._priority if spec.priority is None else Priority.parse(spec.priority)
        unique = None if spec.unique is None else msgspec.convert(spec.unique, CheckedUnique)
        ordering = None if spec.ordering is None else msgspec.convert(spec.ordering, PublishedOrdering).key
        return ResolvedHandler(
            name,
            None,
            spec.lane or self._lane,
            priority,
            spec.timeout_seconds,
            spec.complete_seconds,
            unique,
            ordering,
            spec.limited,
            spec.tenant,
        )

    async def secret_arguments(self, handler: str) -> tuple[str, ...]:
        """Arguments of a handler, declared here or published by agents, whose values people are not shown."""
        resolved = self.local(handler)
        if resolved is not None and resolved.handler is not None:
            return resolved.handler.options.secret
        spec = await self._spec(handler)
        return () if spec is None else spec.secret

    def undeclared(self, handler: Callable[..., Any] | str) -> ResolvedHandler:
        """A name that is not declared here, with the cluster's defaults; ``InputError`` when it can be none."""
        if not isinstance(handler, str) and not callable(handler):
            raise InputError(
                f"the handler is of type {type(handler).__name__}, and neither a function nor a name",
                hint="of many jobs the arguments come first: submit_many(items, handler=resize)",
            )
        if not isinstance(handler, str):
            raise UnknownHandler(
                f"{getattr(handler, '__qualname__', handler)!r} is not declared as a handler of this cluster",
                hint="mark it with @handlers.job on the registry given to the cluster, or submit by name",
            )
        return ResolvedHandler(check_name(handler, "the handler's name"), None, self._lane, self._priority, known=False)

    def check_names(self, resolved: ResolvedHandler, unique: CheckedUnique) -> None:
        """``InputError`` when a unique key is made of what is no argument of the handler (all its jobs would have one
        key), or of a secret argument."""
        spec = self._published.get(resolved.name) if resolved.handler is None else resolved.handler.spec
        if spec is None:
            return
        schema: Mapping[str, Any] = spec.schema
        if shown := unique.secrets_in_key(spec.secret):
            raise InputError(
                f"the key of 'unique' would show {shown[0]!r}, a secret argument of handler {resolved.name!r}",
                hint=KEY_SHOWS_HINT,
            )
        if missing := unique.missing(schema):
            known = [*schema.get("properties", ())]
            raise InputError(
                f"args of 'unique' has {missing[0]!r}, which is no argument of handler {resolved.name!r}",
                hint=did_you_mean(missing[0], known) or f"its arguments are {', '.join(known) or 'none'}",
            )

    async def check(self, resolved: ResolvedHandler, args: bytes, *, allow_unregistered: bool) -> None:
        """Check encoded arguments of a handler that is declared elsewhere; ``InvalidArguments`` names what is wrong."""
        spec = self._published.get(resolved.name)
        if spec is None:
            if allow_unregistered:
                return
            raise UnknownHandler(f"there is no handler {resolved.name!r}")
        value = decode_json(args)
        wrong = problems(spec.schema, value)
        if wrong and self._may_reread():
            await self._read()
            wrong = problems(self._published.get(resolved.name, spec).schema, value)
        if wrong:
            names = ", ".join(_usage(spec.schema))
            raise InvalidArguments(f"handler {resolved.name!r}: {'; '.join(wrong)}", hint=f"it takes ({names})")

    async def _spec(self, name: str) -> HandlerSpec | None:
        if self._read_at is None or self._clock.boottime() - self._read_at > FORGET_SECONDS:
            await self._read()
        if name not in self._published and self._may_reread():
            await self._read()
        return self._published.get(name)

    def _may_reread(self) -> bool:
        return self._read_at is None or self._clock.boottime() - self._read_at > REREAD_SECONDS

    async def _read(self) -> None:
        self._published = await self._queries.handlers()
        self._read_at = self._clock.boottime()


def _usage(schema: Mapping[str, Any]) -> list[str]:
    required = schema.get("required", ())
    return [name if name in required else f"{name}=..." for name in schema.get("properties", {})]


def check_declared(resolved: ResolvedHandler, options: SubmitOptions | BulkOptions) -> None:
    """``InputError`` for options that do not go with what the handler declares, as far as that is known."""
    if resolved.limited and options.get("complete_time"):
        raise InputError(
            f"handler {resolved.name!r} has a limit, which cannot count a slow run that goes on after 'complete_time'",
            hint="leave 'complete_time' out, and give a timeout, which ends slow runs",
        )
    if resolved.known and ("complete_time" in options or "cancel_slow" in options):
        check_slow_run(options, resolved.timeout_seconds, resolved.complete_seconds)


def headers_for(resolved: ResolvedHandler, headers: bytes) -> bytes:
    """The headers of a job of the handler: with its tenant unless they name one; and a program that does not know limits
    would start it without a permit."""
    if resolved.tenant is not None:
        headers = headers_of_tenant(headers, resolved.tenant)
    return headers_requiring(headers, Capability.LIMITS) if resolved.limited else headers


def arguments_mapping(args: object) -> Mapping[str, object]:
    """The arguments as a mapping; ``InvalidArguments`` for anything else."""
    if args is None:
        return {}
    if not isinstance(args, Mapping):
        raise InvalidArguments(
            f"arguments must be a mapping of names to values, not {type(args).__name__}",
            hint="submit(handler, {'path': 'a.png', 'width': 10})",
        )
    return args
