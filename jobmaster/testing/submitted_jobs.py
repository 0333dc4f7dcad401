"""Jobs that a test has submitted, as people read them, and the search for one by handler and arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from jobmaster.codec import decode_headers, decode_json, encode_args
from jobmaster.handlers import Call, Handler, Handlers
from jobmaster.model.errors import InvalidArguments
from jobmaster.model.job import Headers, JobState, Priority
from jobmaster.model.suggestion import did_you_mean
from jobmaster.testing.memory.rows import MemoryJob
from jobmaster.testing.registries import handler_of

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class SubmittedJob:
    """One job of a test, as it is now."""

    def __init__(self, job: MemoryJob) -> None:
        self._job = job

    @property
    def id(self) -> UUID:
        return UUID(bytes=self._job.entry.id)

    @property
    def handler(self) -> str:
        """Name of its handler."""
        return self._job.entry.handler

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments by name, as JSON values; those left to the function's defaults are absent."""
        arguments: Any = decode_json(self._job.entry.args)
        return dict(arguments)

    @property
    def state(self) -> JobState:
        return self._job.state

    @property
    def attempt(self) -> int:
        """Attempts that have ended."""
        return self._job.entry.attempt

    @property
    def priority(self) -> Priority:
        return Priority(self._job.priority)

    @property
    def lane(self) -> str:
        return self._job.lane

    @property
    def due_at(self) -> datetime | None:
        """When it may run; ``None``: at once."""
        due_us = self._job.entry.due_us
        return _EPOCH + timedelta(microseconds=due_us) if due_us else None

    @property
    def tags(self) -> tuple[str, ...]:
        return self._headers.tags

    @property
    def metadata(self) -> dict[str, str]:
        return self._headers.metadata

    @property
    def raised(self) -> BaseException | None:
        """What its handler raised in the last attempt."""
        return self._job.raised

    @property
    def _headers(self) -> Headers:
        data = self._job.entry.headers
        return decode_headers(data) if data else Headers()

    def __repr__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        due = f" due {self.due_at:%Y-%m-%d %H:%M:%S} UTC" if self.due_at else ""
        return f"<{self.handler}({arguments}) {self.state.value}{due}>"


class Wanted:
    """A handler and some of its arguments, to be compared with submitted jobs.

    Raises:
        UnknownHandler, InvalidArguments: no such job can ever have been submitted.
    """

    def __init__(
        self, handler: Call[Any] | Callable[..., Any] | str, args: Mapping[str, Any], handlers: Handlers
    ) -> None:
        if isinstance(handler, Call):
            if args:
                raise InvalidArguments(
                    "a call has its arguments, and more are given beside it",
                    hint="assert_submitted(call(resize, 'a.png')), or assert_submitted(resize, path='a.png')",
                )
            args = handler.arguments
            handler = handler.handler
        self._handler = _known(handler, handlers)
        _refuse_unknown(self._handler, args)
        sent: Any = decode_json(encode_args(self._handler.plain(args), True))
        self._args: dict[str, Any] = sent
        self._defaults = {
            name: parameter.default
            for name, parameter in inspect.signature(self._handler.function).parameters.items()
            if parameter.default is not inspect.Parameter.empty
        }

    def matches(self, job: SubmittedJob) -> bool:
        """The job is of this handler and has these arguments; others may be there."""
        if job.handler != self._handler.name:
            return False
        arguments = job.arguments
        return all(
            arguments[name] == value if name in arguments else self._is_default(name, value)
            for name, value in self._args.items()
        )

    def _is_default(self, name: str, value: Any) -> bool:
        if name not in self._defaults:
            return False
        default: Any = decode_json(encode_args(self._handler.plain({name: self._defaults[name]}), True))
        return bool(default[name] == value)

    def __str__(self) -> str:
        return f"{self._handler.name}({', '.join(f'{name}={value!r}' for name, value in self._args.items())})"


def listed(jobs: Iterable[SubmittedJob]) -> str:
    """The jobs, a line each."""
    lines = [f"  {job!r}" for job in jobs]
    return "submitted were:\n" + "\n".join(lines) if lines else "no job was submitted"


def _known(handler: Callable[..., Any] | str, handlers: Handlers) -> Handler:
    found = handlers.get(handler) if isinstance(handler, str) else handlers.of(handler)
    return found if found is not None else handler_of(handler, handlers)[1]


def _refuse_unknown(handler: Handler, args: Mapping[str, Any]) -> None:
    """An argument that the handler does not take is a mistake of the test: no job can have it."""
    for name in args:
        if name not in handler.parameters:
            near = did_you_mean(name, handler.parameters)
            raise InvalidArguments(
                f"handler {handler.name!r} takes no argument {name!r}",
                hint=near or f"it takes ({', '.join(handler.parameters)})",
            )
