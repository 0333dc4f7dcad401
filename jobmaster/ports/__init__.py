"""What the runtime and the client need of the two stores, as narrow Protocols by need.

Every method is one statement or one function call (a bounded number for the paged ones), each bounded in time by the
implementation. Errors of drivers are mapped once, at the border: ``Unavailable`` when nothing can have happened,
``OutcomeUnknown`` when the effect may have happened (sending the same again is always safe), ``Refused`` otherwise.

Two refusals must never be confused (they are different fields of every answer):
*by the row* (another identity, or final) settles the entry; *by the bucket lock* settles nothing.

Ids are 16 bytes, times are microseconds since 1970 by the answering server's clock, durations say their unit.
"""

from __future__ import annotations

from jobmaster.ports.membership import Membership, Renewal
from jobmaster.ports.onboarding import Onboarded, Onboarding
from jobmaster.ports.outcomes import CancelledRow, Outcomes
from jobmaster.ports.queries import EVERY_OWNER, Queries, SentBefore, SentRow, Traits
from jobmaster.ports.rescue import Rescue, Swept, Unfit
from jobmaster.ports.store import (
    FIND_IDS_MAX,
    Claimed,
    Kept,
    Page,
    StoreHealth,
    StoreIntake,
    StoreOwner,
    Submitted,
    Word,
)
from jobmaster.ports.submitting import Intake
from jobmaster.ports.upkeep import DueGroup, Help, Leftover, RowRef, Tended, Unserved, Upkeep
from jobmaster.ports.written import Written

__all__ = [
    "EVERY_OWNER",
    "FIND_IDS_MAX",
    "CancelledRow",
    "Claimed",
    "DueGroup",
    "Help",
    "Intake",
    "Kept",
    "Leftover",
    "Membership",
    "Onboarded",
    "Onboarding",
    "Outcomes",
    "Page",
    "Queries",
    "Renewal",
    "Rescue",
    "RowRef",
    "SentBefore",
    "SentRow",
    "StoreHealth",
    "StoreIntake",
    "StoreOwner",
    "Submitted",
    "Swept",
    "Tended",
    "Traits",
    "Unfit",
    "Unserved",
    "Upkeep",
    "Word",
    "Written",
]
