"""Named explorations: what may go wrong together. Each is small, because everything with everything would never end.

``states`` is what an exploration finds; a test that finds much less explores something else than it says.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from tests.model.rules import Scope


class FaultSet(NamedTuple):
    """One exploration of the whole protocol."""

    name: str
    about: str
    scope: Scope
    states: int
    core: bool = False
    """Small enough for the fast half of the tests."""


_DEAD = Scope(crash=True)
_ZOMBIE = replace(_DEAD, zombie=True)
_RESCUERS = replace(_ZOMBIE, rescuer_crash=True)
_TWO_COPIES = replace(_ZOMBIE, sends=2, copies=2)

_FAULT_SETS = (
    FaultSet(
        "crashes",
        "owner and rescuer die or live on after their certificate; replies of claims and commits are lost; one retry",
        replace(_RESCUERS, rescuer_zombie=True, lost_commits=True, lost_claims=True, failures=1),
        25572,
        core=True,
    ),
    FaultSet(
        "retry here",
        "a retry stays in its bucket, a put is not answered, jobs are given back and onboarded again",
        replace(_ZOMBIE, retry_here=True, failures=1, gives_back=True, lost_puts=True, lost_commits=True),
        25738,
    ),
    FaultSet(
        "retry here twice",
        "two retries in a row in the same bucket",
        replace(_ZOMBIE, retry_here=True, failures=2, lost_commits=True, onboards=False),
        5802,
        core=True,
    ),
    FaultSet(
        "unaware rescuer",
        "a rescuer takes the bucket and never gets the answer",
        replace(_RESCUERS, rescuer_unaware=True, lost_commits=True),
        1881,
        core=True,
    ),
    FaultSet(
        "sent to two buckets",
        "an acknowledgement is lost, the job is sent again to a second bucket",
        replace(_RESCUERS, sends=2, to_bucket_2=True),
        9384,
    ),
    FaultSet(
        "sent to the master",
        "... or to the master, which gives it back to the same bucket",
        replace(_TWO_COPIES, to_master=True),
        6670,
        core=True,
    ),
    FaultSet(
        "sent to the master, retried",
        "... and the first copy fails and is tried again here",
        replace(_DEAD, sends=2, copies=2, to_master=True, retry_here=True, failures=1),
        5683,
    ),
    FaultSet("sent twice", "... or to the same bucket again", replace(_TWO_COPIES, lost_claims=True), 3383, core=True),
    FaultSet(
        "sent twice, fenced start",
        "... and every start needs an accepted write",
        replace(_TWO_COPIES, fenced_start=True, lost_commits=True),
        2589,
        core=True,
    ),
    FaultSet(
        "fenced start",
        "every start needs an accepted write; crashes, zombies, lost replies",
        replace(_RESCUERS, rescuer_zombie=True, fenced_start=True, lost_commits=True, lost_claims=True, failures=1),
        19682,
    ),
    FaultSet(
        "two jobs in a list",
        "claimed lists with several entries, lost claims",
        replace(_ZOMBIE, jobs=2, copies=2, lost_claims=True),
        16702,
    ),
    FaultSet(
        "two jobs, two pages",
        "a rescuer dies between the pages",
        replace(_RESCUERS, jobs=2, copies=2),
        59737,
    ),
    FaultSet(
        "cancel",
        "a cancel request at any moment, retries, jobs given back",
        replace(_ZOMBIE, cancel=True, failures=1, retry_here=True, gives_back=True),
        15815,
    ),
    FaultSet(
        "cancel, lost puts",
        "... of a job whose put, and perhaps whose claim, is not answered",
        replace(_DEAD, cancel=True, failures=1, gives_back=True, lost_puts=True, lost_claims=True),
        3946,
        core=True,
    ),
    FaultSet(
        "cancel, sent twice",
        "... of a job in two buckets",
        replace(_ZOMBIE, cancel=True, sends=2, to_bucket_2=True),
        5826,
        core=True,
    ),
    FaultSet(
        "cancel, fenced start",
        "... of a job whose start needs an accepted write",
        replace(_ZOMBIE, cancel=True, fenced_start=True, lost_commits=True),
        988,
        core=True,
    ),
    FaultSet(
        "change",
        "a client changes a job that waits in its bucket, or dies in the middle",
        replace(_ZOMBIE, changes=True, lost_commits=True, lost_claims=True, gives_back=True),
        12879,
        core=True,
    ),
    FaultSet(
        "change, sent twice",
        "... of a job that lies in the bucket twice, and may be cancelled",
        replace(_TWO_COPIES, changes=True, cancel=True),
        19929,
    ),
    FaultSet(
        "kept outcomes",
        "the master is away: outcomes wait in the store, for their owner or a rescuer",
        replace(_RESCUERS, keeps_outcomes=True, failures=1, lost_commits=True),
        10712,
    ),
    FaultSet(
        "kept outcomes, exit",
        "... or for an owner that leaves in order",
        replace(_ZOMBIE, keeps_outcomes=True, exits=True, failures=1),
        7256,
    ),
    FaultSet(
        "kept, sent twice",
        "... while a second copy of the job waits in the bucket",
        replace(_TWO_COPIES, keeps_outcomes=True),
        3019,
        core=True,
    ),
    FaultSet(
        "suspended",
        "jobs start under the store's term alone, kept outcomes leave memory, and their owner applies them",
        replace(_ZOMBIE, suspends=True, keeps_outcomes=True, failures=1, lost_commits=True),
        8383,
    ),
    FaultSet(
        "suspended, rescuers",
        "... while rescuers wait for the end of that term, die, or live on",
        replace(_RESCUERS, rescuer_zombie=True, suspends=True, keeps_outcomes=True),
        7698,
        core=True,
    ),
    FaultSet(
        "suspended, retried",
        "... around a retry in the same bucket",
        replace(_DEAD, suspends=True, keeps_outcomes=True, retry_here=True, failures=1, onboards=False),
        1632,
        core=True,
    ),
    FaultSet(
        "suspended, sent twice",
        "... while a second copy of the job waits in the bucket",
        replace(_DEAD, sends=2, copies=2, suspends=True, keeps_outcomes=True),
        1771,
        core=True,
    ),
    FaultSet(
        "graceful exit",
        "COMPLETING to READY_TO_DELETE under crashes, zombies, lost replies, retries",
        replace(_ZOMBIE, exits=True, failures=1, gives_back=True, lost_commits=True),
        21187,
    ),
    FaultSet(
        "graceful exit, two jobs", "... with two jobs", replace(_DEAD, exits=True, jobs=2, copies=2), 4504, core=True
    ),
    FaultSet(
        "emergency stop",
        "FROZEN in the master and perhaps in the store, unfrozen under a new epoch that the owner adopts",
        replace(_ZOMBIE, freezes=True, lost_commits=True, gives_back=True, failures=1),
        32759,
    ),
    FaultSet(
        "store lost",
        "the bucket's keys are gone",
        replace(_ZOMBIE, store_loss=True, gives_back=True, failures=1),
        12341,
    ),
    FaultSet(
        "sister bucket",
        "a job in two buckets of one agent, one of which is lost with its store",
        Scope(sister=True, sends=2, to_bucket_2=True, copies=2, store_loss=True),
        527,
        core=True,
    ),
    FaultSet("store rolled back", "the store comes back older than it was", replace(_ZOMBIE, rollback=True), 12639),
    FaultSet(
        "store rolled back, sent twice",
        "... and a producer sends to a bucket that is gone",
        replace(_DEAD, rollback=True, sends=2, copies=2),
        8122,
        core=True,
    ),
    FaultSet(
        "store rolled back, retried",
        "... around a retry",
        replace(_ZOMBIE, rollback=True, retry_here=True, failures=1, onboards=False),
        59458,
    ),
    FaultSet(
        "archive",
        "the finished row is archived and dropped while copies linger",
        replace(_RESCUERS, rescuer_zombie=True, archive=True, lost_commits=True),
        6331,
    ),
    FaultSet(
        "archive, sent twice",
        "... in a second bucket",
        replace(_ZOMBIE, archive=True, sends=2, to_bucket_2=True),
        3357,
        core=True,
    ),
    FaultSet(
        "archive, store rolled back",
        "... or come back with an older store",
        replace(_ZOMBIE, archive=True, rollback=True),
        14924,
    ),
    FaultSet(
        "failover",
        "a standby without the newest commits becomes the master",
        replace(_ZOMBIE, failover=True, lost_commits=True),
        17733,
    ),
    FaultSet(
        "failover, retried",
        "... around a retry",
        replace(_DEAD, failover=True, retry_here=True, failures=1),
        10879,
    ),
    FaultSet(
        "failover, two rescuers",
        "... in the middle of a rescue, whose rescuer goes on",
        replace(_DEAD, failover=True, rescuer_zombie=True, onboards=False),
        15077,
    ),
    FaultSet(
        "failover, store lost",
        "... and the store loses the bucket",
        replace(_DEAD, failover=True, store_loss=True),
        3935,
        core=True,
    ),
    FaultSet(
        "certificate",
        "leases run out and are renewed, a certifier looks and writes: two steps, one compare-and-set",
        Scope(leased=True, crash=True),
        458,
        core=True,
    ),
)
FAULT_SETS = {each.name: each for each in _FAULT_SETS}
