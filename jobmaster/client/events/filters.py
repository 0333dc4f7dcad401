"""Which events a reader wants."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple, TypedDict
from uuid import UUID

from jobmaster.handlers import Handlers, check_name
from jobmaster.model.errors import InputError, UnknownHandler
from jobmaster.model.event import ClusterEvent, EventKind, JobEvent, MissedEvents
from jobmaster.model.flow.batch import range_of
from jobmaster.model.flow.tenant import checked_tenant
from jobmaster.model.ids import parse
from jobmaster.model.suggestion import did_you_mean
from jobmaster.ports.batches import ListedBatches


class EventFilters(TypedDict, total=False):
    """Which events a reader gets; what is left out, or ``None``, admits every event. All but ``kinds`` admit events of jobs
    alone."""

    kinds: EventKind | str | Iterable[EventKind | str] | None
    """One kind or several."""
    handler: Callable[..., Any] | str | Iterable[Callable[..., Any] | str] | None
    """The function or its name; one or several."""
    tag: str | None
    batch: UUID | str | None
    """Jobs of this batch (an id of a batch, or ``ctx.batch``)."""
    workflow: UUID | str | None
    """Jobs of the steps of this workflow."""
    tenant: str | None
    """Jobs of this tenant."""


class EventFilter(NamedTuple):
    """The same, checked."""

    kinds: tuple[str, ...] | None = None
    handlers: tuple[str, ...] | None = None
    tag: str | None = None
    batch: bytes | None = None
    """One of its ranges."""
    workflow: str | None = None
    tenant: str | None = None

    def admits(self, event: ClusterEvent) -> bool:
        """Whether a reader wants the event; of a job of a batch, as far as the event alone shows it. A reader always learns
        that events are missing.
        """
        if isinstance(event, MissedEvents):
            return True
        if self.kinds is not None and event.kind not in self.kinds:
            return False
        if self[1:] == _ANY:
            return True
        if not isinstance(event, JobEvent) or (self.handlers is not None and event.handler not in self.handlers):
            return False
        if self[2:] == _ANY[1:]:
            return True
        headers = event.headers
        if self.tag is not None and self.tag not in headers.tags:
            return False
        if self.batch is not None and not headers.batch:
            return False
        if self.tenant is not None and headers.tenant != (self.tenant,):
            return False
        return self.workflow is None or (headers.workflow is not None and headers.workflow[0] == self.workflow)


_ANY = EventFilter()[1:]
_RANGES_MAX = 10_000


class EventChooser:
    """Chooses events. A batch may have several ranges of ids, so the batch of a range is read, once.

    Args:
        batches: reads them.
    """

    def __init__(self, chosen: EventFilter, batches: ListedBatches) -> None:
        self.chosen = chosen
        self._batches = batches
        self._batch: bytes | None = None
        self._batch_of: dict[bytes, bytes | None] = {}

    async def admits(self, event: ClusterEvent) -> bool:
        """Whether the reader wants the event.

        Raises:
            Unavailable: the master does not answer.
        """
        if not self.chosen.admits(event):
            return False
        if self.chosen.batch is None or not isinstance(event, JobEvent):
            return True
        if self._batch is None:
            self._batch = await self._read(self.chosen.batch) or self.chosen.batch
        lowest = range_of(event.id_bytes)
        if lowest not in self._batch_of:
            if len(self._batch_of) >= _RANGES_MAX:
                self._batch_of.clear()
            self._batch_of[lowest] = await self._read(lowest)
        return self._batch_of[lowest] == self._batch

    async def _read(self, lowest: bytes) -> bytes | None:
        for view in await self._batches.list(lowest, limit=1):
            return view.id_bytes
        return None


def checked_filters(
    filters: EventFilters, handlers: Handlers, kinds: Collection[EventKind], caller: str
) -> EventFilter:
    """The filter of a reader.

    Args:
        kinds: those that this reader may get.
        caller: name of the called method, for messages.

    Raises:
        InputError: a filter that there is not, or a value that no event can have.
    """
    for name in filters:
        if name not in EventFilters.__annotations__:
            known = ", ".join(EventFilters.__annotations__)
            raise InputError(
                f"{caller} has no filter {name!r}",
                hint=did_you_mean(name, EventFilters.__annotations__) or f"there are {known}",
            )
    tag, batch, workflow = filters.get("tag"), filters.get("batch"), filters.get("workflow")
    tenant = filters.get("tenant")
    return EventFilter(
        _kinds(filters.get("kinds"), kinds, caller),
        _handlers(filters.get("handler"), handlers),
        None if tag is None else check_name(tag, "'tag'"),
        None if batch is None else range_of(_id(batch, "batch")),
        None if workflow is None else str(UUID(bytes=_id(workflow, "workflow"))),
        None if tenant is None else checked_tenant(tenant),
    )


def _kinds(value: object, known: Collection[EventKind], caller: str) -> tuple[str, ...] | None:
    if value is None:
        return None
    given = [value] if isinstance(value, str) or not isinstance(value, Iterable) else list(value)
    words = [str(each).lower() for each in given]
    valid = sorted(kind.value for kind in known)
    for word in words:
        if word not in valid:
            hint = did_you_mean(word, valid) or f"there are {', '.join(valid)}"
            raise InputError(f"{caller} gives no events of the kind {word!r}", hint=hint)
    if not words:
        raise InputError("'kinds' is empty, and no event would be given", hint="leave it out to get every kind")
    return tuple(words)


def _handlers(value: object, handlers: Handlers) -> tuple[str, ...] | None:
    if value is None:
        return None
    given: list[Any] = list(value) if isinstance(value, Iterable) and not isinstance(value, str) else [value]
    if not given:
        raise InputError("'handler' is empty, and no event would be given", hint="leave it out to get every handler")
    names = []
    for one in given:
        if isinstance(one, str):
            names.append(check_name(one, "'handler'"))
            continue
        declared = handlers.of(one)
        if declared is None:
            raise UnknownHandler(
                f"{getattr(one, '__qualname__', one)!r} is not declared as a handler of this cluster",
                hint="give the handler's name",
            )
        names.append(declared.name)
    return tuple(names)


def _id(value: object, name: str) -> bytes:
    if isinstance(value, UUID | str):
        with contextlib.suppress(ValueError):
            return parse(value)
    raise InputError(f"'{name}' must be an id, not {value!r:.60}")
