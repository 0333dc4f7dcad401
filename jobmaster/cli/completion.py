"""Values that a shell completes: handlers, lanes, agents and schedules, as the master knows them at the moment.

A completion must not make the shell wait, and must print nothing but values. So the master has ``BUDGET_SECONDS`` to answer,
and every failure means that there are no values.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import click

from jobmaster.cli.invocation import invocation_of

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from jobmaster.settings.model import ClusterSettings

BUDGET_SECONDS = 0.3
"""For the connection and the answer together."""
_END_SECONDS = 1.0
"""After so long the process ends: a name server that is silent cannot be cancelled."""

Completer = Callable[[click.Context, click.Parameter, str], "list[CompletionItem]"]


class Known(StrEnum):
    """What the master can be asked for."""

    HANDLERS = "handlers"
    LANES = "lanes"
    AGENTS = "agents"
    SCHEDULES = "schedules"


def known(kind: Known) -> Completer:
    """A function for the parameter ``shell_complete`` of options and arguments."""

    def complete(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        return [CompletionItem(value) for value in values(ctx, kind) if value.startswith(incomplete)]

    return complete


def values(ctx: click.Context, kind: Known) -> list[str]:
    """The values of one kind in their order; none when the master does not answer in time."""
    if hasattr(signal, "setitimer"):
        signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
        signal.setitimer(signal.ITIMER_REAL, _END_SECONDS)
    try:
        with open(os.devnull, "w") as nothing, contextlib.redirect_stderr(nothing):  # warnings of the configuration
            return sorted(asyncio.run(_values(invocation_of(ctx).settings, kind)))
    except Exception:
        return []
    finally:
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, 0)


async def _values(settings: ClusterSettings, kind: Known) -> set[str]:
    from jobmaster.wiring import open_reader  # its imports are no part of the budget

    async with asyncio.timeout(BUDGET_SECONDS):
        reader = await open_reader(settings)
        try:
            if kind is Known.SCHEDULES:
                rows = [*await reader.report("schedules"), *await reader.report("paused_schedules")]
                return {row["name"] for row in rows}
            agents = await reader.report("agents", False)
            if kind is Known.AGENTS:
                return {row["name"] for row in agents}
            return {value for row in agents for value in _texts(row[kind.value])}
        finally:
            await reader.close()


def _texts(value: Any) -> Iterable[str]:
    return map(str, value or ())
