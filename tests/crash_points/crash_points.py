"""Every named crash point, in this protocol: before or after which call of a port it lies, or why there is none.

The names are those of the steps of the protocol: S submit, F flush, H hold, O onboard, M bucket to memory, B start, L lease,
R finish, T retry, C cancel, G graceful exit, K certificate, D taking a lost bucket, V moving its pages, X closing and
deleting it. A is the start of an agent, Y a change of a job that waits, P a pause, J a producer that fills a batch, N the end
of a batch, I a signal, E a circuit breaker, Z a fire of a schedule, and U a named lock and an action that runs once: the list
of steps passes over them.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from tests.crash_points.faulty_ports import Action, FaultSpec

BEFORE, AFTER = Action.KILL_BEFORE, Action.KILL_AFTER


class Situation(StrEnum):
    """What goes on when the process dies."""

    WORK = "work"
    """The agent works."""
    START = "start"
    """The agent has just been started."""
    LEAVE = "leave"
    """The agent leaves in order, with jobs running, claimed and waiting."""
    RESCUE = "rescue"
    """The agent drains the buckets of another one that was killed."""
    CERTIFY = "certify"
    """The agent writes a certificate for another one, which is known to be dead by its lease alone."""
    DOUBT = "doubt"
    """The agent gets no answer from the master, and its lease is half over."""
    SUBMIT = "submit"
    """A producer sends single jobs, whose ids it has written down."""
    BULK = "bulk"
    """A producer sends many jobs in chunks."""
    CANCEL = "cancel"
    """A producer cancels jobs that wait in a bucket."""
    CHANGE = "change"
    """A producer gives another due time to jobs that wait in a bucket."""
    BATCH = "batch"
    """The agent ends the last jobs of a batch."""
    FILL = "fill"
    """A producer fills a batch that has a key."""
    LOCK = "lock"
    """A program works under a named lock, then runs an action that runs once."""
    APART = "apart"
    """A test of its own."""


class CrashPoint(NamedTuple):
    """One crash point. ``later`` is the occurrence at which the later pass strikes."""

    description: str
    situation: Situation
    call: str = ""
    action: Action = BEFORE
    match: str = ""
    later: int = 3
    first: int = 1

    def fault(self, *, later: bool) -> FaultSpec:
        return FaultSpec(self.call, self.action, self.later if later else self.first, self.match)


_W, _G, _R = Situation.WORK, Situation.LEAVE, Situation.RESCUE

POINTS: dict[str, CrashPoint] = {
    # A start that is cut off is the only writer of what it made.
    "A0": CrashPoint("agent row written, its number not seen", Situation.START, "master.register", AFTER, later=1),
    "A1": CrashPoint(
        "buckets in the master, not in the store", Situation.START, "master.create_buckets", AFTER, later=1
    ),
    "A2": CrashPoint(
        "first (second) bucket open in the store, no agent serves it",
        Situation.START,
        "store.open_bucket",
        AFTER,
        later=2,
    ),
    "S0": CrashPoint("nothing sent", Situation.SUBMIT, "store.submit", BEFORE),
    "S1": CrashPoint("executed, reply lost", Situation.SUBMIT, "store.submit", AFTER),
    "S2": CrashPoint("between chunks", Situation.BULK, "store.submit", BEFORE, first=2, later=4),
    "S3": CrashPoint("acknowledged, the store dies before its next fsync", Situation.APART),
    # Flush: what is claimed and has not ended within `persist_within` gets its row.
    "F0": CrashPoint("slow jobs chosen, nothing written", _W, "master.persist", BEFORE, "'slow'"),
    "F2": CrashPoint("rows committed, reply lost", _W, "master.persist", AFTER, "'slow'"),
    "F3": CrashPoint("rows committed, lists not deleted", _W, "store.settle", BEFORE, later=2),
    "F4": CrashPoint("lists deleted", _W, "store.settle", AFTER, later=2),
    "H0": CrashPoint("decided HELD, nothing written", _W, "master.hold", BEFORE),
    "H1": CrashPoint("HELD committed, copy still in its list", _W, "master.hold", AFTER),
    "O0": CrashPoint("nothing claimed from the master yet", _W, "master.onboard", BEFORE),
    "O1": CrashPoint("ASSIGNED committed, no copy in the store", _W, "master.onboard", AFTER, "Entry("),
    "O2": CrashPoint("this batch put, others not", _W, "store.assign", AFTER, "quick", later=2),
    "M0": CrashPoint("claimed in the store, reply lost", _W, "store.claim", AFTER, "Entry("),
    "M1": CrashPoint("jobs in memory that were not started", _W, "master.copy_final", BEFORE),
    "B0": CrashPoint("fenced start asked for, nothing written", _W, "master.persist", BEFORE, "'fenced'"),
    "B1": CrashPoint("PROCESSING committed, reply lost", _W, "master.persist", AFTER, "'fenced'"),
    "B1 permit": CrashPoint(
        "permit and PROCESSING committed, reply lost", _W, "master.admit", AFTER, "'limited'", later=1
    ),
    "L0": CrashPoint("renewal not sent", _W, "master.renew", BEFORE),
    "L1": CrashPoint("renewed, reply lost", _W, "master.renew", AFTER),
    "L2": CrashPoint("the reply comes after the deadline", Situation.APART),
    "R0": CrashPoint("effect done, nothing recorded", _W, "master.copy_final", BEFORE),
    "R1": CrashPoint("outcome committed, reply lost", _W, "master.copy_final", AFTER),
    "R1 upsert": CrashPoint("outcome of a job that has a row committed, reply lost", _W, "master.record_final", AFTER),
    "R0 step": CrashPoint("step of a workflow ended, nothing written", _W, "master.finish_steps", BEFORE, later=2),
    "R1 step": CrashPoint(
        "outcome of a step committed and the next step ASSIGNED, no copy in the store",
        _W,
        "master.finish_steps",
        AFTER,
        "Entry(",
        later=2,
    ),
    "R0 transaction": CrashPoint(
        "effect done in a transaction, its outcome not written", _W, "transaction.write", BEFORE, later=2
    ),
    "R1 written": CrashPoint(
        "outcome written in the transaction, not committed", _W, "transaction.commit", BEFORE, later=2
    ),
    "R1 transaction": CrashPoint("transaction committed, reply lost", _W, "transaction.commit", AFTER, later=2),
    "R2": CrashPoint("outcome committed, list not deleted", _W, "store.settle", BEFORE),
    "R2 permit": CrashPoint(
        "permit free by a committed outcome, no hint sent", _W, "master.waiting_elsewhere", BEFORE, later=1
    ),
    "R3": CrashPoint(
        "outcome kept in the store while the master is away", Situation.DOUBT, "store.keep_outcomes", AFTER, later=2
    ),
    "T0": CrashPoint("attempt and next token committed, reply lost", _W, "master.retry_here", AFTER),
    "T0 snooze": CrashPoint(
        "put off in its bucket and next token committed, reply lost",
        _W,
        "master.retry_here",
        AFTER,
        '"snoozes":',
        later=2,
    ),
    "H1 snooze": CrashPoint(
        "put off in the master and HELD committed, copy still in its list",
        _W,
        "master.hold",
        AFTER,
        '"snoozes":',
        later=2,
    ),
    "R1 decided": CrashPoint(
        "final failure of the handler committed, reply lost",
        _W,
        "master.copy_final",
        AFTER,
        '"reason":"failed"',
        later=2,
    ),
    "R0 given up": CrashPoint(
        "the rules of the handler have given up, nothing recorded",
        _W,
        "master.copy_final",
        BEFORE,
        '"given_up"',
        later=2,
    ),
    "T0 late": CrashPoint("late job found, nothing written", _W, "master.reassign_late", BEFORE, later=2),
    "T1 late": CrashPoint(
        "late job HELD with the next token, reply lost", _W, "master.reassign_late", AFTER, "moved=1", later=2
    ),
    "T1": CrashPoint("attempt and next token committed, copy not put", _W, "store.assign", BEFORE, "retries_here"),
    "C0": CrashPoint("row cancelled, reply lost", Situation.CANCEL, "master.cancel", AFTER, "CANCELLED"),
    "C1": CrashPoint("row cancelled, copy waits in the bucket", Situation.CANCEL, "store.request_cancel", BEFORE),
    "Y0": CrashPoint("job without a row has one, its copy waits", Situation.CHANGE, "master.assign_copy", AFTER),
    "Y1": CrashPoint("copy recalled, row still ASSIGNED", Situation.CHANGE, "store.recall", AFTER),
    "Y2": CrashPoint("HELD with the new time committed, reply lost", Situation.CHANGE, "master.hold_recalled", AFTER),
    # A named lock, and an action that runs once.
    "U0": CrashPoint("lock taken, reply lost", Situation.LOCK, "master.acquire", AFTER, "'import'", later=1),
    "U1": CrashPoint("lock renewed, reply lost", Situation.LOCK, "master.renew", AFTER, "'import'", later=1),
    "U2": CrashPoint("work done, lock not given back", Situation.LOCK, "master.release", BEFORE, "'import'", later=1),
    "U3": CrashPoint("begin of the action recorded, not run", Situation.LOCK, "master.begin", AFTER, later=1),
    "U4": CrashPoint("action run, its end not recorded", Situation.LOCK, "master.record", BEFORE, later=1),
    "U5": CrashPoint("end of the action recorded, reply lost", Situation.LOCK, "master.record", AFTER, later=1),
    # A fire of a schedule, by the leader.
    "Z0": CrashPoint("fires chosen, nothing written", Situation.APART, "master.fire", BEFORE),
    "Z1": CrashPoint("fires and their jobs committed, reply lost", Situation.APART, "master.fire", AFTER),
    # The end of a batch: noted, counted, and its callbacks made.
    "N0": CrashPoint("outcomes committed, nothing noted", Situation.BATCH, "master.tally", BEFORE, later=1),
    "N1": CrashPoint("outcomes noted, reply lost", Situation.BATCH, "master.tally", AFTER, later=1),
    "N2": CrashPoint("all jobs ended and noted, batch not ended", Situation.BATCH, "master.conclude", BEFORE, later=1),
    "N3": CrashPoint(
        "batch ended and its callbacks made, reply lost", Situation.BATCH, "master.conclude", AFTER, later=1
    ),
    # The producer of a batch with a key: chunks stored, all stored, closed.
    "J0": CrashPoint("batch open, no job stored", Situation.FILL, "store.submit", BEFORE, later=1),
    "J1": CrashPoint("some chunks stored, replies lost", Situation.FILL, "store.submit", AFTER, first=3, later=3),
    "J2": CrashPoint("all jobs stored, batch not closed", Situation.FILL, "master.close", BEFORE, later=1),
    "J3": CrashPoint("batch closed, reply lost", Situation.FILL, "master.close", AFTER, later=1),
    # A signal whose sender has died between two portions, and a wait that is over; both are the leader's.
    "I0": CrashPoint("rest of a signal delivered, reply lost", Situation.APART, "master.finish_sent", AFTER, "True"),
    "I1": CrashPoint("waits ended, reply lost", Situation.APART, "master.expire_waits", AFTER, "expired=1"),
    # A circuit breaker: opened by an agent that has reported runs, half-opened by the leader, which chooses trials.
    "E0": CrashPoint("failures reported, not evaluated", Situation.APART, "master.evaluate", BEFORE, "'resource'"),
    "E1": CrashPoint("breaker half-open, reply lost", Situation.APART, "master.half_open", AFTER, "HALF_OPEN"),
    "E2": CrashPoint("trials chosen, reply lost", Situation.APART, "master.choose_trials", AFTER, "chosen=1"),
    "E3": CrashPoint(
        "success of a trial reported, reply lost and not evaluated",
        Situation.APART,
        "master.report",
        AFTER,
        "failed=False",
    ),
    # A pause: stored by a command, read and obeyed by the agents.
    "P0": CrashPoint("pause stored, not read by the agent", Situation.APART, "master.in_force", BEFORE),
    "P1": CrashPoint("pause applied, the agent's version not stored", Situation.APART, "master.obey", BEFORE),
    "P2": CrashPoint("version of the agent stored, reply lost", Situation.APART, "master.obey", AFTER),
    "C2": CrashPoint("signal to a running handler lost", Situation.APART),
    "G0": CrashPoint(
        "COMPLETING in the master, open in the store", _G, "master.move_bucket", AFTER, "COMPLETING", later=2
    ),
    "G1": CrashPoint("closed to submits", _G, "store.close_intake", AFTER, later=2),
    "G2": CrashPoint("waiting jobs HELD in the master, still in the store", _G, "master.hold", AFTER, later=2),
    "G3": CrashPoint("found empty, not retired", _G, "store.close_if_empty", AFTER, "<ReplyStatus.OK", later=2),
    "G4": CrashPoint("buckets retired, agent row ACTIVE", _G, "master.end_agent", BEFORE, later=1),
    "K0": CrashPoint("lease over, no certificate", Situation.CERTIFY, "master.certify_dead", BEFORE, later=1),
    "D0": CrashPoint("epoch raised in the master, store not fenced", _R, "master.take_lost", AFTER, "Bucket(", later=2),
    "D1": CrashPoint("store fenced, nothing moved", _R, "store.fence", AFTER, later=2),
    "V0": CrashPoint("page committed, not removed from the store", _R, "store.remove_page", BEFORE, later=3),
    "V1": CrashPoint("some pages moved", _R, "master.rescue_page", BEFORE, first=2, later=4),
    "V2": CrashPoint("rows without copies given back, bucket not closed", _R, "master.sweep", AFTER, later=2),
    "X0": CrashPoint(
        "closed in the store, DRAINING in the master", _R, "store.close_if_empty", AFTER, "<ReplyStatus.OK", later=2
    ),
    "X1": CrashPoint("READY_TO_DELETE in the master, keys exist", _R, "store.delete_bucket", BEFORE, later=2),
    "X2": CrashPoint("keys deleted, the master remembers the bucket", _R, "master.drop_bucket", BEFORE, later=2),
    "X3": CrashPoint("keys come back after the bucket was forgotten", Situation.APART),
}

ABSENT: dict[str, str] = {
    "F1": "A flush is one autocommitted statement: a process that dies inside it leaves the state of F0 or of F2.",
    "B2": "The answer of B1 is what calls the handler, in the same process: dying on either side of it leaves the same.",
    "K1": "The certificate and LOST for the buckets are one transaction.",
}

_LAST = {
    "S": 3,
    "F": 4,
    "H": 1,
    "O": 2,
    "M": 1,
    "B": 2,
    "L": 2,
    "R": 3,
    "T": 1,
    "C": 2,
    "G": 4,
    "K": 1,
    "D": 1,
    "V": 1,
    "X": 3,
}
NAMED = frozenset(f"{step}{number}" for step, last in _LAST.items() for number in range(last + 1))
"""The crash points that a protocol of this kind is known to have."""
