"""Capabilities: words for what a program must know to treat a job as its submit asks for.

A program ignores options in the headers of a job that are newer than itself. Where that would be unsafe (a limit that is
exceeded, a next step that is never made), the headers name the capability in ``requires``, and an agent publishes the words
that its program knows. Such a job is fetched, put into a bucket and started only where every word is known.

``requires`` is the first field of the headers, so a comparison of a few bytes tells the jobs that have it from all others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import lru_cache

from jobmaster.model.job import Headers


class Capability(StrEnum):
    """What a program may know. A word once published keeps its meaning. Lower-case letters and ``_`` only: the words are read
    from the JSON without a parser."""

    COMPLETE_TIME = "complete_time"
    """A run that takes longer is given to another agent."""
    SIGNALS = "signals"
    """The job has waited for a signal, and its handler reads what was sent."""
    ORDERING = "ordering"
    """The job starts when no earlier one of its ordering key is unfinished."""
    LIMITS = "limits"
    """The job starts with the permits of its handler's limits. No field names them: a submit that knows the handler adds the
    word."""
    WORKFLOWS = "workflows"
    """The job is a step: what follows it depends on how it ends."""
    BATCHES = "batches"
    """The job is one of a batch, and does not start once the batch is cancelled."""


OF_FIELDS: Mapping[str, Capability] = {
    "complete_seconds": Capability.COMPLETE_TIME,
    "signal": Capability.SIGNALS,
    "ordering_key": Capability.ORDERING,
    "workflow": Capability.WORKFLOWS,
    "batch": Capability.BATCHES,
}
"""Fields of ``Headers`` that are unsafe to ignore when they have a value other than ``None``, 0 or nothing."""

CAPABILITIES = frozenset(word.value for word in Capability)
"""The words that this program knows. Read as an attribute of the module: tests replace it."""

_BEGIN = b'{"requires":['
_NONE: frozenset[str] = frozenset()


def required(headers: Headers) -> tuple[str, ...]:
    """Words that the fields of the headers need, and those that are named already, sorted."""
    words = {word.value for field, word in OF_FIELDS.items() if getattr(headers, field)}
    return tuple(sorted(words.union(headers.requires)))


def required_words(headers: bytes) -> frozenset[str]:
    """Words that encoded headers name; nothing for most jobs. ``required_words`` of the master reads them alike."""
    if not headers.startswith(_BEGIN):
        return _NONE
    end = headers.find(b"]")
    listed = headers[len(_BEGIN) :] if end < 0 else headers[len(_BEGIN) : end]
    return _words(listed)


@lru_cache(maxsize=1000)
def _words(listed: bytes) -> frozenset[str]:
    """Every job of a batch has the same ones."""
    return frozenset(listed.replace(b'"', b"").decode("ascii", "replace").split(","))


def lacking(headers: bytes, words: Iterable[str] | None = None) -> frozenset[str]:
    """Words that encoded headers name and that are not among those of a program (default: this one)."""
    if not headers.startswith(_BEGIN):
        return _NONE
    return required_words(headers).difference(CAPABILITIES if words is None else words)
