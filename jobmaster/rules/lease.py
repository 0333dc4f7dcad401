"""How long a lease may be trusted. Times are CLOCK_BOOTTIME seconds of one machine.

An agent counts its term from the moment it *sent* the renewal (the idea is River's elector: attempt start + term) until a
margin before the term ends. The master counts from the moment it wrote the row, which is later. So the owner always gives up
first, and only the *rates* of two clocks matter, never their offsets.

While the master does not answer at all, the agent's own store may confirm a bucket in the same way (*store term*): it refuses
a fenced owner, and makes a rescuer wait until the last confirmed term is over. Such a term is a lease too, counted from the
sending, and all rules of this module hold for it.
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


class LeaseStatus(Enum):
    """What a lease allows at a moment."""

    TRUSTED = 1
    """Start and commit."""
    SOFT = 2
    """Finish and commit running jobs; start no job."""
    ENDED = 3
    """Stop: another agent may own the buckets soon."""
    SUSPENDED = 4
    """The master does not answer, the store confirms the buckets: start jobs that need no accepted write, commit nothing."""


class Term(NamedTuple):
    """One renewed lease, counted on the clock of its holder."""

    soft_until: float
    """No new starts from here on."""
    hard_until: float
    """No commits from here on: cancel, kill, exit."""
    trusted_until: float
    """The lease itself ends; a process that still lives must be killed from outside."""


def term(sent: float, lease_seconds: float) -> Term:
    """Term of a renewal that was sent at ``sent``."""
    end = sent + lease_seconds
    return Term(sent + lease_seconds * SOFT_SHARE, end - lease_seconds * MARGIN_SHARE, end)


def renewed(present: Term | None, sent: float, replied: float, lease_seconds: float) -> Term | None:
    """Term after an answer that came at ``replied``; ``None`` when it came too late to count.

    Too late means: after the deadline of the present term (a certificate of death may exist already), or after the deadline
    of the very term that the answer would grant. An agent that works on store terms has no present term in this sense: it has
    not relied on the lease since, and the answer "alive" shows that no certificate exists.
    """
    granted = term(sent, lease_seconds)
    if replied >= granted.hard_until or (present is not None and replied >= present.hard_until):
        return None
    return granted if present is None or granted.trusted_until > present.trusted_until else present


def lease_status(now: float, present: Term | None, store_term: Term | None = None) -> LeaseStatus:
    """What the present term allows or, where it is over, the store term. Without a term nothing is allowed."""
    if present is not None and now < present.soft_until:
        return LeaseStatus.TRUSTED
    if store_term is not None and now < store_term.hard_until:
        return LeaseStatus.SUSPENDED
    return LeaseStatus.ENDED if present is None or now >= present.hard_until else LeaseStatus.SOFT


def may_suspend(now: float, present: Term | None, *, unanswered: bool, works: bool) -> bool:
    """True when the store may be asked to confirm the buckets: the first half of the lease is over, the master gave no answer
    at all (a refusal and a certificate are answers), and this process makes progress and reaches its store (``works``)."""
    return unanswered and works and present is not None and now >= present.soft_until


def store_term_seconds(lease_seconds: float, beat_seconds: float) -> float:
    """Seconds between two questions to the store: three fit into the half of its term in which jobs may start."""
    return min(beat_seconds, lease_seconds * SOFT_SHARE / 3.0)


class LeaseTiming(NamedTuple):
    """Length of a lease, and time between two renewals."""

    lease_seconds: float
    renew_seconds: float


def lease_timing(agents: int, lease_seconds: float, renew_seconds: float, renewals_per_second: float) -> LeaseTiming:
    """The timing of each of ``agents`` agents, so that all their renewals together stay below ``renewals_per_second``.

    Both numbers stretch by the same factor, in quarter steps (so that one agent more or less changes nothing), up to a lease
    of ``LEASE_SECONDS_MAX``. The price is that a death is noticed later.
    """
    stretch = max(math.ceil(agents / (renewals_per_second * renew_seconds) * 4.0) / 4.0, 1.0)
    stretch = max(min(stretch, LEASE_SECONDS_MAX / lease_seconds), 1.0)
    return LeaseTiming(lease_seconds * stretch, renew_seconds * stretch)


def shortened(present: Term, sent: float, lease_seconds: float) -> Term:
    """Term to trust once a renewal with a shorter lease is sent: the master may count by it, also without an answer."""
    granted = term(sent, lease_seconds)
    return granted if granted.trusted_until < present.trusted_until else present
