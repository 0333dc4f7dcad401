"""Pauses in words: why jobs wait, and what ends that. One set of words for commands, warnings and explanations."""

from __future__ import annotations

from collections.abc import Sequence

from jobmaster.model.pause import Pause, PauseKind


def explained(found: Sequence[Pause]) -> str:
    """Pauses as a reason why jobs wait."""
    return ", ".join(f"{each.subject} is paused by {each.actor}: {each.reason}" for each in found)


def remedy(each: Pause) -> str:
    """The command that ends a pause."""
    if each.kind is PauseKind.BREAKER:
        return f"jobmaster breaker close {each.value}"
    return f"jobmaster resume {each.kind} {each.value}"


def schedules_paused(count: int) -> str:
    """How many schedules are paused, and where they are listed."""
    return f"{count} schedule{' is' if count == 1 else 's are'} paused (jobmaster pauses)"
