"""Where a process may die, by the names that the crash hooks use, and which step of the model stands at each.

A step's name begins with the point at which the process stands after it: killing the process there is taking that step and
then the crash of A or of the rescuer (or nothing more from the producer). Points whose states are the same share a step.
"""

from __future__ import annotations

import re

_POINT = re.compile(r"[A-Z]\d(?= )")

STEPS = {
    # submit
    "S1": "S1 executed, reply lost",
    "S2": "S2 between two submits",
    "S3": "S3 acknowledged; what the store's log had not written goes with a lost or rolled back store",
    # flush and hold: one statement, then the list
    "F0": "M1 claimed, to be given back",
    "F2": "F2 committed, reply lost",
    "F3": "H1 committed, list not deleted",
    "F4": "F4 list deleted",
    "H0": "H0 decided, not committed",
    "H1": "H1 committed, copy still in its list",
    # onboarding
    "O1": "O1 marked in the master, not put",
    # from the bucket to memory
    "M0": "M0 moved in the store, reply lost",
    "M1": "M1 in memory, not started",
    # start="fenced"
    "B0": "M1 in memory, nothing written",
    "B1": "B1 committed, reply lost",
    "B2": "B2 committed, handler not called",
    # finish
    "R0": "R0 effect done, nothing recorded",
    "R1": "R1 committed, reply lost",
    "R2": "R2 committed, list not deleted",
    "R3": "R3 outcome kept in the store",
    # retry
    "T0": "T0 committed, reply lost",
    "T1": "T1 committed, list not deleted, or copy not put",
    # cancel
    "C0": "C0 flag on the row; asking again changes nothing, so the reply does not matter",
    "C1": "C1 final row, copies remain in the store",
    "C2": "C0 the owner gets no request and finds the flag when it writes",
    # a change of a job that waits
    "Y0": "Y0 row under the identity of the copy, which waits",
    "Y1": "Y1 copy recalled, row still ASSIGNED",
    "Y2": "Y2 HELD with the new values, reply lost",
    # graceful exit
    "G0": "G0 COMPLETING in the master, store open",
    "G1": "G1 store closed to submits",
    "G2": "H1 held in the master, still in a list",
    "G3": "G3 found empty and closed in the store",
    "G4": "G4 READY_TO_DELETE in the master",
    # certificate
    "K0": "K0 the certifier has seen the lease over",
    # rescue
    "D0": "D0 epoch + 1 in the master, store not fenced",
    "D1": "D1 fenced, nothing moved",
    "V0": "V0 moved in the master, not removed from the store",
    "V1": "V1 removed; other pages wait",
    # the end of a bucket
    "X0": "X0 closed in the store, not in the master",
    "X1": "X1 READY_TO_DELETE, keys exist",
    "X2": "X2 keys deleted, tombstone stands",
    "X3": "X3 keys are there again",
}
"""Crash point -> the step after which a process stands there, and what the state is."""

NO_STEP = {
    "S0": "nothing has happened yet: the start of every exploration",
    "F1": "inside a transaction: PostgreSQL undoes it",
    "O0": "inside a transaction: PostgreSQL undoes it",
    "O2": "the copies of one batch are put by one store call of at most a thousand; a second call is a second O1",
    "L0": "leases are left out, or (leased) expire at any moment",
    "L1": "leases are left out, or (leased) expire at any moment",
    "L2": "leases are left out, or (leased) expire at any moment",
    "K1": "certificate and LOST are one transaction, and one step",
}
"""Crash points without a step of their own, and why."""


def point_of(step: str) -> str:
    """The crash point in a step's name, or nothing."""
    found = _POINT.match(step)
    return found[0] if found else ""
