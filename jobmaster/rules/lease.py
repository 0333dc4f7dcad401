"""When a lease may be trusted, and who may judge a neighbour. Times are CLOCK_BOOTTIME seconds of one machine.

An agent trusts itself from the moment it *sent* the renewal (the idea is River's elector: attempt start + term) until a
margin before the term ends; the master counts from the moment it wrote the row, which is later. So the owner always gives
up first, and only the *rates* of two clocks matter, never their offsets.

While the master does not answer at all, the agent's own store may stand for a bucket in the same way: it refuses an owner
that was fenced, and tells a rescuer to wait until the term that it last gave is over. So such a term is a lease too, counted
from the sending, and everything here holds for it.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import NamedTuple

SOFT_SHARE = 0.5
"""Share of the lease after which nothing new is started."""
MARGIN_SHARE = 0.1
"""Share of the lease kept for stopping handlers before the term ends."""
LEASE_SECONDS_MAX = 600.0
"""No lease is longer, however large the cluster."""


class Standing(Enum):
    """What a lease allows at a moment."""

    TRUSTED = 1
    """Start and commit."""
    SOFT = 2
    """Finish and commit what runs; start nothing."""
    ENDED = 3
    """Stop: somebody else may own the buckets soon."""
    SUSPENDED = 4
    """The master does not answer, the store stands for the buckets: start what needs no accepted write, commit nothing."""


class Term(NamedTuple):
    """One renewed lease, as its holder counts it."""

    soft_until: float
    """No new starts from here on."""
    hard_until: float
    """No commits from here on: cancel, kill, exit."""
    trusted_until: float
    """The lease itself ends; whoever still lives must be killed from outside."""


def term(sent: float, lease_seconds: float) -> Term:
    """Term of a renewal that was sent at ``sent``."""
    end = sent + lease_seconds
    return Term(sent + lease_seconds * SOFT_SHARE, end - lease_seconds * MARGIN_SHARE, end)


def renewed(present: Term | None, sent: float, replied: float, lease_seconds: float) -> Term | None:
    """Term after an answer that came at ``replied``; ``None`` when it came too late to count.

    Too late is: after the deadline of the present term (others may have been told already that this agent is dead), or
    after the deadline of the very term it would grant. An agent that its store stands for has no present term in this sense:
    it has not relied on the lease since, and an answer that says "alive" says that nobody was told anything.
    """
    granted = term(sent, lease_seconds)
    if replied >= granted.hard_until or (present is not None and replied >= present.hard_until):
        return None
    return granted if present is None or granted.trusted_until > present.trusted_until else present


def standing(now: float, present: Term | None, vouched: Term | None = None) -> Standing:
    """What the present term allows, and that of the store where it is over; no term allows nothing."""
    if present is not None and now < present.soft_until:
        return Standing.TRUSTED
    if vouched is not None and now < vouched.hard_until:
        return Standing.SUSPENDED
    return Standing.ENDED if present is None or now >= present.hard_until else Standing.SOFT


def may_suspend(now: float, present: Term | None, *, unanswered: bool, works: bool) -> bool:
    """True when the store may be asked to stand for the buckets: the first half of the lease is over, the master gave no
    answer at all (a refusal is one, and so is a certificate), and this process makes progress and is heard by its store."""
    return unanswered and works and present is not None and now >= present.soft_until


def store_term_seconds(lease_seconds: float, beat_seconds: float) -> float:
    """How often the store is asked: three times before the half of its term in which jobs may start is over."""
    return min(beat_seconds, lease_seconds * SOFT_SHARE / 3.0)


class Rhythm(NamedTuple):
    """How long one renewal promises, and how often it is renewed."""

    lease_seconds: float
    renew_seconds: float


def rhythm(agents: int, lease_seconds: float, renew_seconds: float, renewals_per_second: float) -> Rhythm:
    """The rhythm of each of so many agents, so that all their renewals together stay under a budget.

    Both numbers stretch alike, in quarter steps (so that one agent more or less changes nothing), up to a lease of
    ``LEASE_SECONDS_MAX``. A death is then noticed later, which is the price.
    """
    stretch = max(math.ceil(agents / (renewals_per_second * renew_seconds) * 4.0) / 4.0, 1.0)
    stretch = max(min(stretch, LEASE_SECONDS_MAX / lease_seconds), 1.0)
    return Rhythm(lease_seconds * stretch, renew_seconds * stretch)


def shortened(present: Term, sent: float, lease_seconds: float) -> Term:
    """What may be trusted once a renewal that promises less is sent: answered or not, the master may count by it then."""
    granted = term(sent, lease_seconds)
    return granted if granted.trusted_until < present.trusted_until else present
