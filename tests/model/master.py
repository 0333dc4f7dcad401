"""The master's statements about one job: guard, effect and read-back, as ``jobmaster/master/sql/jobs`` has them.

Every function is one transaction. ``Written`` says how it ended: accepted, refused by the row, refused by the bucket's lock,
or stopped by a cancel request.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.model.rules import Rules, Setting
from tests.model.state import (
    ACTIVE,
    ASSIGNED,
    BY_PRODUCER,
    BY_RESCUER,
    DRAINING,
    ELSEWHERE,
    FINAL,
    FROZEN,
    HELD,
    IN_FLIGHT,
    ONBOARDED,
    PROCESSING,
    RETRIED,
    WORKING,
    Change,
    Copy,
    Entry,
    Job,
    Row,
    State,
)

ACCEPTED, REFUSED, FENCED, STOPPED = "accepted", "refused", "fenced", "stopped"

TWO_OUTCOMES = "I1 two outcomes for one job"
OVERWRITTEN = "I1 a final row is overwritten"
STRANGER = "I4 a write of another assignment is accepted"
GIVEN_BACK = "I4 a write about a job that was given back is accepted"
NOT_MINE = "I4 another's row is taken for an own success"
RUN_AGAIN = "I5 a finished job is put to work again"
ROBBED = "I6 a job of a living bucket is taken by a rescuer"
CANCEL_FORGOTTEN = "an acknowledged cancel request is forgotten"
THROWN_AWAY = "a rescuer makes an outcome void that lies in the bucket it drains"


class Written(NamedTuple):
    """The end of one statement."""

    result: str
    state: State
    broken: str = ""


def owns(state: State, copy: Copy, *among: str) -> bool:
    """What the bucket lock finds: the bucket is in one of the states, of this epoch and owner."""
    if copy.bucket == 2:
        return True
    bucket = state.bucket
    return bucket.state in among and (bucket.epoch, bucket.owner) == (copy.epoch, "A")


def stopped(state: State, copy: Copy) -> bool:
    """The row after a refused write of its owner: the bucket is frozen, or continues under a later epoch."""
    bucket = state.bucket
    return bucket.owner == "A" and (bucket.state == FROZEN or (bucket.state in WORKING and bucket.epoch > copy.epoch))


def write(setting: Setting, state: State, copy: Copy, what: str, *, bare: bool = False) -> Written:
    """``what``: final, persist, hold or here. ``bare``: a plain UPDATE instead of the upsert."""
    rules = setting.rules
    if what in ("persist", "here") and rules.bucket_lock and not owns(state, copy, *WORKING):
        return Written(FENCED, state)
    job = state.jobs[copy.job]
    row = job.row
    if row is None:
        if bare or (job.dropped and rules.watermark):
            return Written(REFUSED, state)
        return _put(rules, state, copy.job, _row_after(rules, copy, what, flag=False))
    if not _passes(rules, row, copy):
        return _read_back(state, row, copy, what)
    if what == "persist" and row.flag and rules.start_minds_flag:
        return Written(STOPPED, state)
    broken = ""
    if row.state == FINAL:
        broken = OVERWRITTEN
    elif row.state == HELD:
        broken = GIVEN_BACK
    elif (row.token, row.bucket, row.epoch) != (copy.token, copy.bucket, copy.epoch) or _differ(state, row, copy):
        broken = STRANGER
    written = _put(rules, state, copy.job, _row_after(rules, copy, what, flag=row.flag))
    return written._replace(broken=broken or written.broken)


def _passes(rules: Rules, row: Row, copy: Copy) -> bool:
    """The guard: identity and state."""
    if rules.in_flight_only:
        if row.state not in IN_FLIGHT:
            return False
    elif rules.final_is_final and row.state == FINAL:
        return False
    compared = rules.identity
    return (
        ("t" not in compared or row.token == copy.token)
        and ("b" not in compared or row.bucket == copy.bucket)
        and ("e" not in compared or row.epoch == copy.epoch)
    )


def _read_back(state: State, row: Row, copy: Copy, what: str) -> Written:
    """Was a refused write an earlier success of our own? (``jobmaster/master/driver/resent_writes.py``)"""
    mine = (row.token, row.bucket, row.epoch) == (copy.token, copy.bucket, copy.epoch)
    own = False
    if row.state == FINAL:
        own = mine and what != "persist"
    elif what == "hold" and row.state == HELD:
        # A SavePending copy may find the job held by its producer, or by another bucket that had it too: held either way.
        own = row.token == copy.token
        if own and copy.token > 1 and _differ(state, row, copy):
            return Written(ACCEPTED, state, NOT_MINE)
    elif what == "here" and row.state in IN_FLIGHT:
        own = (row.token, row.bucket, row.epoch) == (copy.token + 1, copy.bucket, copy.epoch)
    return Written(ACCEPTED if own else REFUSED, state)


def _differ(state: State, row: Row, copy: Copy) -> bool:
    """They stem from two assignments. A master that forgets commits gives a token out twice: that is no fault of a guard."""
    return row.origin != copy.origin and "failover" not in state.spent


def _row_after(rules: Rules, copy: Copy, what: str, *, flag: bool) -> Row:
    identity = (copy.token, copy.bucket, copy.epoch, copy.origin)
    if what == "final" or (what in ("hold", "here") and flag and rules.flag_kept):
        return Row(FINAL, *identity, flag)
    if what == "persist":
        return Row(PROCESSING, *identity, flag)
    kept = flag and rules.flag_kept
    if what == "hold":
        place = (0, 0) if rules.held_clears_bucket else (copy.bucket, copy.epoch)
        return Row(HELD, copy.token, *place, copy.origin, kept)
    return Row(ASSIGNED, copy.token + (1 if rules.retry_here_bumps else 0), copy.bucket, copy.epoch, RETRIED, kept)


def _put(rules: Rules, state: State, number: int, row: Row) -> Written:
    """The row of a job becomes ``row``; what is wrong with that, whichever part writes it."""
    job = state.jobs[number]
    broken = ""
    outcomes = job.outcomes
    if row.state == FINAL:
        outcomes += 1
        if outcomes > 1:
            broken = TWO_OUTCOMES
    elif job.outcomes:
        broken = RUN_AGAIN
    elif job.cancelled and row.state == ASSIGNED:
        broken = CANCEL_FORGOTTEN
    return Written(ACCEPTED, state.with_job(number, job._replace(row=row, outcomes=outcomes)), broken)


# ---------------------------------------------------------------- producers and clients


def insert_held(setting: Setting, state: State, number: int) -> Written:
    """A producer's own row; an id that has one is left alone."""
    job = state.jobs[number]
    if job.row is not None:
        return Written(REFUSED, state)
    token = 1 if setting.rules.held_begins_at_one else 0
    return _put(setting.rules, state, number, Row(HELD, token, 0, 0, BY_PRODUCER))


def cancel(setting: Setting, state: State, number: int) -> Written | None:
    """A cancel request; None: there is nothing to cancel (any more)."""
    job = state.jobs[number]
    row = job.row
    if row is None:
        if job.dropped or not state.kept(number):
            return None
        if not setting.rules.tombstone:  # only a request in the store, where a rescuer does not look
            return Written(STOPPED, state.with_job(number, job._replace(cancelled=True)))
        tombstone = Row(FINAL, 1, 0, 0, BY_PRODUCER, True)
        return _put(setting.rules, state, number, tombstone)
    if row.state == FINAL:
        return None
    if row.state == HELD:
        return _put(setting.rules, state, number, row._replace(state=FINAL, flag=True))
    return Written(STOPPED, state.with_job(number, job._replace(row=row._replace(flag=True), cancelled=True)))


def hold_recalled(setting: Setting, state: State, change: Change) -> Written:
    """A job whose copy was recalled -> HELD; the token stays."""
    row = state.jobs[change.job].row
    if row is None or row.state != ASSIGNED:
        return Written(REFUSED, state)
    mine = (row.token, row.bucket, row.epoch) == (change.token, 1, change.epoch)
    if not mine and setting.rules.recalled_identity:
        return Written(REFUSED, state)
    differs = row.origin != change.origin and "failover" not in state.spent
    copy = Copy(change.job, row.token, row.bucket, row.epoch, row.origin, "", 0, 1)
    written = _put(setting.rules, state, change.job, _row_after(setting.rules, copy, "hold", flag=row.flag))
    return written._replace(broken=written.broken or ("" if mine and not differs else STRANGER))


# ---------------------------------------------------------------- the owner: onboarding, release


def onboard(setting: Setting, state: State, number: int, bucket: int) -> Written:
    """HELD -> ASSIGNED to bucket 1 (by A) or 2 (by C), token + 1."""
    row = state.jobs[number].row
    assert row is not None
    epoch = state.agent.epoch if bucket == 1 else 1
    copy = Copy(number, row.token + 1, bucket, epoch, ONBOARDED if bucket == 1 else ELSEWHERE, "", 0, 1)
    if setting.rules.bucket_lock and not owns(state, copy, ACTIVE):
        return Written(FENCED, state)
    assigned = Row(ASSIGNED, copy.token, bucket, epoch, copy.origin, row.flag)
    return _put(setting.rules, state, number, assigned)


def release(setting: Setting, state: State, entry: Entry, bucket: int, states: str = ASSIGNED) -> Written:
    """A row without a copy -> HELD, by its identity; the token stays."""
    row = state.jobs[entry.job].row
    epoch = state.agent.epoch if bucket == 1 else 1
    if row is None or row.state not in states or (row.token, row.bucket, row.epoch) != (entry.token, bucket, epoch):
        return Written(REFUSED, state)
    copy = Copy(entry.job, row.token, bucket, epoch, row.origin, "", 0, 1)
    return _put(setting.rules, state, entry.job, _row_after(setting.rules, copy, "hold", flag=row.flag))


def give_back(setting: Setting, state: State, number: int) -> Written:
    """A row that runs, or is from before an emergency stop, and that its owner knows nothing of -> HELD, token + 1."""
    row = state.jobs[number].row
    assert row is not None
    return _move(setting.rules, state, number, row, "")


# ---------------------------------------------------------------- rescue and leader


def rescue(setting: Setting, state: State, number: int, epoch: int, name: str) -> Written:
    """One entry found in the bucket's store, under the rescuer's own bucket lock."""
    rules = setting.rules
    bucket = state.bucket
    if rules.rescuer_lock and (bucket.state, bucket.epoch, bucket.owner) != (DRAINING, epoch, name):
        return Written(FENCED, state)
    job = state.jobs[number]
    row = job.row
    if row is None:
        if job.dropped and rules.watermark:
            return Written(REFUSED, state)
        written = _put(rules, state, number, Row(HELD, 2 if rules.rescuer_bumps else 1, 0, 0, BY_RESCUER))
        return written._replace(broken=written.broken or made_void(state, number, 1))
    if row.state == FINAL:
        if rules.rescuer_minds_final:
            return Written(REFUSED, state)
        return Written(ACCEPTED, state.with_row(number, _moved(rules, row)), RUN_AGAIN)
    if row.state not in IN_FLIGHT or (row.bucket != 1 and rules.rescuer_minds_bucket):
        return Written(REFUSED, state)
    return _move(rules, state, number, row, ROBBED if row.bucket != 1 else made_void(state, number, row.token))


def sweep(setting: Setting, state: State, number: int, epoch: int, name: str) -> Written:
    """A row that still names the bucket being drained."""
    bucket = state.bucket
    if setting.rules.rescuer_lock and (bucket.state, bucket.epoch, bucket.owner) != (DRAINING, epoch, name):
        return Written(FENCED, state)
    row = state.jobs[number].row
    assert row is not None
    return _move(setting.rules, state, number, row, made_void(state, number, row.token))


def return_orphan(setting: Setting, state: State, number: int) -> Written:
    """An in-flight row of bucket 1 -> HELD, token + 1."""
    row = state.jobs[number].row
    assert row is not None
    return _move(setting.rules, state, number, row, "")


def _moved(rules: Rules, row: Row) -> Row:
    place = (0, 0) if rules.held_clears_bucket else (row.bucket, row.epoch)
    token = row.token + (1 if rules.rescuer_bumps else 0)
    return Row(HELD, token, *place, BY_RESCUER, row.flag and rules.flag_kept)


def _move(rules: Rules, state: State, number: int, row: Row, broken: str) -> Written:
    if row.flag and rules.flag_kept:
        written = _put(rules, state, number, row._replace(state=FINAL))
    else:
        written = _put(rules, state, number, _moved(rules, row))
    return written._replace(broken=broken or written.broken)


def made_void(state: State, number: int, token: int) -> str:
    """What is broken when a rescuer takes this job from an outcome that waits to be applied."""
    return THROWN_AWAY if any(each.entry[:2] == (number, token) for each in state.store.kept) else ""


def names_bucket(job: Job) -> bool:
    """An in-flight row of bucket 1."""
    return job.row is not None and job.row.state in IN_FLIGHT and job.row.bucket == 1
