"""One handler: the function, its options, and the typed way in and out of it."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import astuple

from jobmaster.codec import decode_json, encode_value
from jobmaster.encryption import PayloadCipher, is_sealed
from jobmaster.handlers.context import JobContext
from jobmaster.handlers.flow.ordering import key_of_function, published
from jobmaster.handlers.lifespan import Lifespan
from jobmaster.handlers.middleware import Around, Innermost, call_with_dependencies, run_around
from jobmaster.handlers.options import HandlerOptions
from jobmaster.handlers.secrets import check_parameters
from jobmaster.handlers.signature import Signature, readable
from jobmaster.model.agent import HandlerSpec
from jobmaster.model.errors import ConfigError, InvalidArguments
from jobmaster.model.flow.limit import LimitUse
from jobmaster.model.job import Confirm, Delivery, Entry, ErrorInfo, RunMode, StartRule
from jobmaster.model.suggestion import did_you_mean
from jobmaster.pydantic_models import ModelDecoder, ModelType, plain_arguments

_BAD_INPUT = (msgspec.DecodeError, RecursionError, ValueError)
_NONE = (None, type(None))
"""What `-> None` is read as."""


class Handler:
    """A declared handler. Made by ``Handlers.job``; only its middleware may be added to afterwards."""

    __slots__ = (
        "_by_position",
        "_decode",
        "_defaults",
        "_model_result",
        "_once",
        "_optional",
        "_ordered",
        "_ordering",
        "_signature",
        "_typed_result",
        "around",
        "cipher",
        "function",
        "has_dependencies",
        "is_async",
        "is_surrounded",
        "lifespan",
        "mappings",
        "models",
        "name",
        "needs_context",
        "options",
        "returns_none",
        "runs_elsewhere",
        "runs_on_loop",
        "spec",
        "takes_nothing",
        "texts",
        "wants_context",
    )

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        options: HandlerOptions,
        signature: Signature,
        lifespan: Lifespan | None = None,
        around: tuple[Around, ...] = (),
    ) -> None:
        self.name = name
        self.function = function
        """Call it with ``(**arguments)``, or ``(context, **arguments)`` when ``wants_context``."""
        self.options = options
        self.is_async = inspect.iscoroutinefunction(function)
        # Attributes and not properties: they are read once per job.
        self.wants_context = signature.wants_context
        """The function's first parameter is the ``JobContext``."""
        self.takes_nothing = not signature.parameters and not signature.wants_context
        """It is called without any argument."""
        self.runs_on_loop = (
            options.mode is RunMode.ASYNC and options.start is StartRule.LEASE and not options.records_itself
        )
        """The common kind: called on the event loop, under the lease alone."""
        self.runs_elsewhere = options.mode is not RunMode.ASYNC or options.records_itself
        """Not in a slot: in a thread, a worker process, or a task of its own."""
        self.texts = signature.texts
        """Parameters that are text."""
        self.mappings = signature.mappings
        """Some parameter may hold a mapping."""
        self._signature = signature
        self.models: Mapping[str, ModelType] = signature.models
        """Parameters that pydantic reads and writes."""
        self._decode: Callable[[bytes], Any] = (
            ModelDecoder(signature.struct, signature.models)
            if signature.models
            else msgspec.json.Decoder(signature.struct).decode
        )
        self._optional = len(signature.required) < len(signature.parameters)
        # Arguments by position cost half of what a mapping of names costs; the fields stand in the signature's order.
        self._by_position = signature.by_position and signature.struct.__struct_fields__ == signature.parameters
        self.returns_none = signature.returns in (Any, *_NONE)
        """A result of None needs no look at the return annotation."""
        # A handler that confirms mostly returns nothing; its result is the argument of ctx.confirm().
        silent = options.confirm is Confirm.EXPLICIT and signature.returns in _NONE
        untyped = signature.returns is Any or silent
        self._model_result = signature.returned_model
        self._typed_result: ModelType | msgspec.json.Decoder[Any] | None = self._model_result
        if self._typed_result is None and not untyped:
            self._typed_result = msgspec.json.Decoder(signature.returns)
        self._defaults = _defaults(function, signature.parameters) if options.limits or options.ordering else {}
        """Of the parameters, for the keys of limits and for the ordering key."""
        self._ordering = published(options.ordering, signature.parameters, self._defaults)
        self.spec = self._make_spec()
        _check_names(options, signature.parameters)
        self.lifespan = lifespan
        """Of the registry that the handler was declared in."""
        self.has_dependencies = signature.has_dependencies
        """Something among its parameters is resolved at the call."""
        self.surround(around)

    def surround(self, around: tuple[Around, ...]) -> None:
        """Have this middleware run around the function; the first is the outermost."""
        self.around = around
        self.is_surrounded = bool(around) or self.has_dependencies
        """Something runs around the function, on an event loop: middleware, or dependencies that are resolved."""
        self.needs_context = self.is_surrounded or self.wants_context
        """It is run with a ``JobContext``."""
        self._once: Handler | None = None
        self._ordered: Handler | None = None
        self.cipher: PayloadCipher | None = None
        """Opens and seals payloads of its jobs."""

    def __repr__(self) -> str:
        return f"<Handler {self.name}>"

    def use_cipher(self, cipher: PayloadCipher | None) -> None:
        """Have the payloads of its jobs opened and sealed. It is called with a context then, which knows the job."""
        if cipher is not None and cipher.seals and self.options.records_itself and self.options.mode is RunMode.PROCESS:
            raise ConfigError(
                f"handler {self.name!r} records its outcome in a worker process, which has no keys of encryption",
                hint="declare it without mode='process', or leave encryption.active out",
            )
        self.cipher = cipher
        self.needs_context = self.needs_context or cipher is not None

    def args_of(self, entry: Entry) -> bytes:
        """The arguments of a job, opened where they were sealed; ``CannotOpen`` as ``PayloadCipher.open_arguments``."""
        if self.cipher is None:
            return entry.args
        return self.cipher.open_arguments(self.name, entry.id, entry.args)

    def seals(self, entry: Entry) -> bool:
        """True when the outcome of a job is sealed: its arguments are."""
        return self.cipher is not None and self.cipher.seals and is_sealed(entry.args)

    def ordered(self) -> Handler:
        """This handler for a job that was submitted with an ordering key."""
        if self._ordered is None:
            self._ordered = Handler(
                self.name, self.function, self.options.ordered(), self._signature, self.lifespan, self.around
            )
            self._ordered.use_cipher(self.cipher)
        return self._ordered

    def once(self) -> Handler:
        """This handler for a job that was submitted with ``delivery="at_most_once"``."""
        if self.options.delivery is Delivery.AT_MOST_ONCE:
            return self
        if self._once is None:
            self._once = Handler(
                self.name, self.function, self.options.once(), self._signature, self.lifespan, self.around
            )
            self._once.use_cipher(self.cipher)
        return self._once

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the arguments, in the order of the signature."""
        return self._signature.parameters

    @property
    def returns(self) -> Any:
        """The return annotation, ``Any`` without an annotation."""
        return self._signature.returns

    # ------------------------------------------------------------ the call

    def run(self, context: JobContext[Any], arguments: dict[str, Any]) -> Awaitable[object]:
        """Call an ``async def`` with all that stands around it; the awaitable gives the result."""
        if not self.is_surrounded:
            result: Awaitable[object] = self.invoke(context, arguments)
            return result
        return self.run_surrounded(context, arguments, partial(self.invoke, context))

    def invoke(self, context: JobContext[Any], arguments: dict[str, Any]) -> Any:
        """Call the function itself, without what stands around it."""
        return self.function(context, **arguments) if self.wants_context else self.function(**arguments)

    def run_surrounded(
        self, context: JobContext[Any], arguments: dict[str, Any], innermost: Innermost
    ) -> Awaitable[object]:
        """Run the middleware and resolve the dependencies around ``innermost``, on the present event loop."""
        if self.has_dependencies:
            return run_around(
                self.around, context, partial(call_with_dependencies, self.function, arguments, innermost)
            )
        return run_around(self.around, context, partial(innermost, arguments))

    # ------------------------------------------------------------ arguments

    def plain(self, args: Mapping[str, object]) -> Mapping[str, object]:
        """The arguments with pydantic's among them as JSON carries them; ``InvalidArguments`` when one cannot be written."""
        return plain_arguments(self.models, args)

    def decode(self, args: bytes) -> dict[str, Any]:
        """Typed keyword arguments from the JSON object that was submitted; absent ones are left to Python's defaults.

        Raises:
            InvalidArguments: they do not fit the signature; the sentence names every missing and unknown argument.
        """
        try:
            values = msgspec.structs.asdict(self._decode(args))
        except _BAD_INPUT as error:
            raise self._misfit(args, error) from None
        if self._optional:
            return {name: value for name, value in values.items() if value is not msgspec.UNSET}
        return values

    def call(self, args: bytes) -> Any:
        """Call the function with the arguments that were submitted; not for one that takes a context.

        Raises:
            InvalidArguments: as ``decode``; or whatever the function raises.
        """
        if self.takes_nothing and args == b"{}":
            return self.function()
        if not self._by_position:
            return self.function(**self.decode(args))
        try:
            values = astuple(self._decode(args))
        except _BAD_INPUT as error:
            raise self._misfit(args, error) from None
        if self._optional:
            for value in values:
                if value is UNSET:
                    return self.function(**self.decode(args))
        return self.function(*values)

    def check(self, args: bytes) -> None:
        """``decode`` for its errors only, and the keys of its limits: what a submit does."""
        if self.options.limits:
            self.limit_uses(args)
            return
        try:
            self._decode(args)
        except _BAD_INPUT as error:
            raise self._misfit(args, error) from None

    def check_names(self, args: Mapping[str, object]) -> None:
        """The names of arguments alone, whose values are not all known yet; ``InvalidArguments`` as ``check``."""
        known = self._signature.parameters
        if any(name not in known for name in args) or any(name not in args for name in self._signature.required):
            raise self._misfit(msgspec.json.encode(dict.fromkeys(args)), ValueError("the names do not fit"))

    def limit_uses(self, args: bytes) -> tuple[LimitUse, ...]:
        """What a job with these arguments takes of the handler's limits while it runs.

        Raises:
            InvalidArguments: as ``decode``, or a key or weight that cannot be computed from them.
        """
        arguments = self.decode(args)
        return tuple(limit.use(arguments, self._defaults) for limit in self.options.limits)

    def ordering_key(self, args: bytes) -> str | None:
        """The ordering key of a job with these arguments; ``None``: the handler declares none.

        Raises:
            InvalidArguments: as ``decode``, or it cannot be computed from them.
        """
        if self._ordering is None:
            return None
        if callable(ordering := self.options.ordering):
            return key_of_function(ordering, {**self._defaults, **self.decode(args)})
        return self._ordering.key(args)

    def _misfit(self, args: bytes, error: Exception) -> InvalidArguments:
        """Every missing and unknown name at once; otherwise the first value that does not fit."""
        known = self._signature.parameters
        usage = f"it takes ({', '.join(self._usage())})"
        try:
            sent = decode_json(args)
        except _BAD_INPUT as broken:
            return InvalidArguments(f"handler {self.name!r}: the arguments are not JSON: {readable(broken)}")
        if not isinstance(sent, dict):
            return InvalidArguments(f"handler {self.name!r}: the arguments must be an object of names", hint=usage)
        problems = [f"missing argument {name!r}" for name in self._signature.required if name not in sent]
        for name in sent:
            if name not in known:
                near = did_you_mean(str(name), known)
                problems.append(f"unknown argument {name!r}" + (f" ({near})" if near else ""))
        return InvalidArguments(f"handler {self.name!r}: {'; '.join(problems) or readable(error)}", hint=usage)

    def _usage(self) -> list[str]:
        required = self._signature.required
        return [name if name in required else f"{name}=..." for name in self._signature.parameters]

    # ------------------------------------------------------------ results

    def encode_result(self, value: object, limit_bytes: int) -> bytes | ErrorInfo | None:
        """JSON of what the function returned, ``None`` for None, or why it cannot be recorded (reason ``result``)."""
        typed = self._typed_result
        if value is None and (typed is None or self._signature.returns in _NONE):
            return None
        try:
            if self._model_result is not None:
                value = self._model_result.plain(value)
            data = encode_value(value, "the result")
        except InvalidArguments as error:
            return _result_error(error.message)
        if typed is not None:
            try:
                typed.decode(data)
            except _BAD_INPUT as error:
                return _result_error(f"the result does not fit the return annotation: {readable(error)}")
        if len(data) > limit_bytes:
            return _result_error(f"the result has {len(data)} bytes, the limit is {limit_bytes}")
        return None if value is None else data

    def decode_result(self, data: bytes | None) -> Any:
        """The result as the return annotation describes it; plain JSON values without an annotation."""
        if data is None:
            return None
        return decode_json(data) if self._typed_result is None else self._typed_result.decode(data)

    # ------------------------------------------------------------ what agents publish

    def _make_spec(self) -> HandlerSpec:
        options = self.options
        spec = HandlerSpec(
            name=self.name,
            schema=self._signature.schema,
            priority=options.priority.label if options.priority else None,
            lane=options.lane,
            timeout_seconds=options.timeout_seconds,
            accept_seconds=options.accept_seconds,
            complete_seconds=options.complete_seconds,
            cancel_slow=options.cancel_slow,
            max_attempts=options.max_attempts,
            mode=options.mode.value,
            start=options.start.value,
            delivery=options.delivery.value,
            unique=None if options.unique is None else msgspec.to_builtins(options.unique),
            ordering=None if self._ordering is None else msgspec.to_builtins(self._ordering),
            limited=bool(options.limits),
            secret=options.secret,
            tenant=options.tenant,
        )
        digest = hashlib.sha256(msgspec.json.encode(spec, order="sorted")).hexdigest()
        return msgspec.structs.replace(spec, digest=digest)


def _check_names(options: HandlerOptions, parameters: Sequence[str]) -> None:
    """An error for an option that names an argument that the handler does not have."""
    for limit in options.limits:
        limit.check_parameters(parameters)
    check_parameters(options.secret, parameters)


def _defaults(function: Callable[..., Any], parameters: Sequence[str]) -> dict[str, Any]:
    """Values of the parameters that need not be sent."""
    found = inspect.signature(function).parameters
    empty = inspect.Parameter.empty
    return {name: found[name].default for name in parameters if found[name].default is not empty}


def _result_error(message: str) -> ErrorInfo:
    return ErrorInfo(type="jobmaster.InvalidResult", message=message, reason="result")
