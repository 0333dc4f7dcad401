"""Which rows of a table are new since the last look, if each has the time at which it was written and not that of its commit.

A transaction may stay open for hours, so a row may become visible long after its time. Each look notes the snapshot of the
server. What a look did not see was written by transactions that ran then or began later; and of a transaction that runs it
is known between which two looks it got its number, before which it has written nothing. So each row is read once, soon after
its commit, and no other session is asked for its times, for which a role would need more rights. (A margin of two
minutes alone was tried: it missed rows of longer transactions, and each look read the rows of the whole margin again.)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import NamedTuple


class Look(NamedTuple):
    """One look at a server."""

    at: datetime
    """Before its snapshot was taken, by the clock of the server."""
    lowest: int
    """Transactions with lower numbers had ended."""
    running: Mapping[int, datetime | None]
    """Transactions that ran -> the last look before they had a number; ``None``: there was none."""


def next_look(last: Look | None, at: datetime, lowest: int, running: Collection[int]) -> tuple[Look, datetime | None]:
    """This look, and since when the rows can have been written that it sees and the last one did not.

    Args:
        last: ``None``: this is the first look, and all rows are new.
        at: a moment before the snapshot, by the clock of the server.
        lowest: the oldest transaction that runs, or the next one.
        running: transactions that run, without their subtransactions.

    Returns:
        ``None`` in place of a time: at any time.
    """
    if last is None:
        return Look(at, lowest, dict.fromkeys(running)), None
    look = Look(at, lowest, {number: last.running.get(number, last.at) for number in running})
    began = [since for number, since in last.running.items() if number not in look.running]
    known = [since for since in began if since is not None]
    return look, min([last.at, *known]) if len(known) == len(began) else None
