"""Each rule switched off: what breaks, and where to look for it. A rule whose absence breaks nothing would not be a rule."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from tests.model import changes, master, owner, suspended, work
from tests.model.bucket_protocol import LOST_JOB
from tests.model.explorer import STUCK
from tests.model.rules import Rules


class Ablation(NamedTuple):
    """A protocol with a rule less."""

    name: str
    rules: Rules
    fault_set: str
    kind: str
    """The promise that is broken then."""
    states: int
    """Found until it was: measured."""


_ALL = Rules()

_ABLATIONS = (
    # Identity and state on the row
    Ablation("identity is the token alone", replace(_ALL, identity="t"), "sent to two buckets", master.STRANGER, 557),
    Ablation("identity is token and bucket", replace(_ALL, identity="tb"), "emergency stop", master.STRANGER, 6232),
    Ablation(
        "a write does not ask whether the row is final",
        replace(_ALL, in_flight_only=False, final_is_final=False),
        "retry here twice",
        master.OVERWRITTEN,
        84,
    ),
    Ablation(
        "HELD keeps its bucket, and a write asks only whether the row is final",
        replace(_ALL, held_clears_bucket=False, in_flight_only=False),
        "retry here",
        master.GIVEN_BACK,
        58,
    ),
    Ablation(
        "a rescuer leaves the token", replace(_ALL, rescuer_bumps=False), "retry here twice", master.NOT_MINE, 3073
    ),
    Ablation(
        "a producer's HELD row has token 0",
        replace(_ALL, held_begins_at_one=False),
        "sent to the master",
        master.STRANGER,
        226,
    ),
    Ablation(
        "a retry here keeps its token", replace(_ALL, retry_here_bumps=False), "retry here twice", master.STRANGER, 97
    ),
    Ablation(
        "a retry here is known by its identity alone",
        replace(_ALL, due_tells_retry=False),
        "sent to the master, retried",
        master.NOT_MINE,
        320,
    ),
    Ablation(
        "the outcome of a known job is a bare UPDATE", replace(_ALL, upsert_known=False), "failover", LOST_JOB, 799
    ),
    # Bucket lock
    Ablation(
        "binding writes do not lock the bucket", replace(_ALL, bucket_lock=False), "fenced start", work.LATE_START, 28
    ),
    Ablation(
        "a refusal by the bucket settles like one by the row",
        replace(_ALL, two_refusals=False),
        "crashes",
        LOST_JOB,
        130,
    ),
    # Claimed lists and memory
    Ablation("lists are deleted before the commit", replace(_ALL, commit_before_delete=False), "crashes", LOST_JOB, 12),
    Ablation(
        "a list is deleted when one entry is known",
        replace(_ALL, whole_lists=False),
        "two jobs in a list",
        LOST_JOB,
        128,
    ),
    Ablation("unknown lists are not read again", replace(_ALL, reread_lists=False), "sent twice", STUCK, 3061),
    Ablation(
        "every copy of an id is live", replace(_ALL, one_live_copy=False), "sent twice, fenced start", work.TWICE, 287
    ),
    Ablation(
        "the list of a second copy goes before the first has settled",
        replace(_ALL, duplicate_waits=False),
        "sister bucket",
        LOST_JOB,
        113,
    ),
    Ablation(
        "store functions ask for no epoch and owner",
        replace(_ALL, store_fence=False),
        "kept, sent twice",
        master.THROWN_AWAY,
        698,
    ),
    # Rescue
    Ablation("no sweep at the end of a rescue", replace(_ALL, sweep=False), "cancel, fenced start", STUCK, 918),
    Ablation(
        "a rescuer's epoch is the master's + 1, whatever the store has",
        replace(_ALL, highest_epoch=False),
        "failover, store lost",
        STUCK,
        3543,
    ),
    Ablation(
        "an owner that is refused does not declare its bucket LOST",
        replace(_ALL, owner_declares=False),
        "sister bucket",
        STUCK,
        291,
    ),
    Ablation(
        "an owner that a frozen bucket refuses takes it for lost",
        replace(_ALL, minds_stop=False),
        "emergency stop",
        owner.STOP_UNDONE,
        188,
    ),
    Ablation(
        "kept outcomes are applied last",
        replace(_ALL, kept_first=False),
        "kept, sent twice",
        master.THROWN_AWAY,
        1125,
    ),
    Ablation(
        "a rescuer removes before it commits",
        replace(_ALL, rescuer_commits_first=False),
        "unaware rescuer",
        LOST_JOB,
        106,
    ),
    Ablation(
        "a rescuer moves final rows too",
        replace(_ALL, rescuer_minds_final=False),
        "cancel, fenced start",
        master.RUN_AGAIN,
        131,
    ),
    Ablation(
        "a rescuer moves rows of other buckets too",
        replace(_ALL, rescuer_minds_bucket=False),
        "unaware rescuer",
        master.ROBBED,
        273,
    ),
    Ablation(
        "a rescuer does not look for buckets it took unawares",
        replace(_ALL, rescuer_looks_again=False),
        "unaware rescuer",
        STUCK,
        1881,
    ),
    Ablation(
        "a certificate is no compare-and-set",
        replace(_ALL, certificate_cas=False),
        "certificate",
        work.ROBBED_OWNER,
        79,
    ),
    # Suspended
    Ablation(
        "the store grants a term to any agent",
        replace(_ALL, term_needs_owner=False),
        "suspended, rescuers",
        suspended.OVERTAKEN,
        320,
    ),
    Ablation(
        "a rescuer does not wait for the end of the store's term",
        replace(_ALL, rescuer_waits=False),
        "suspended, rescuers",
        suspended.OVERTAKEN,
        277,
    ),
    Ablation(
        "an owner trusts the store's term for longer than the store",
        replace(_ALL, owner_gives_up_first=False),
        "suspended, rescuers",
        suspended.OVERTAKEN,
        572,
    ),
    Ablation(
        "an owner without a lease starts jobs without the store's term",
        replace(_ALL, start_needs_term=False),
        "suspended, rescuers",
        suspended.OVERTAKEN,
        182,
    ),
    Ablation(
        "memory lets go of an outcome that the store does not have",
        replace(_ALL, keeps_first=False),
        "suspended, retried",
        LOST_JOB,
        106,
    ),
    Ablation(
        "kept outcomes are removed before they are committed",
        replace(_ALL, apply_commits_first=False),
        "suspended, retried",
        LOST_JOB,
        98,
    ),
    Ablation(
        "kept outcomes are left to the next owner",
        replace(_ALL, owner_applies=False),
        "suspended, retried",
        STUCK,
        1548,
    ),
    Ablation(
        "owners do not count kept outcomes as copies",
        replace(_ALL, repair_minds_kept=False),
        "suspended, retried",
        master.THROWN_AWAY,
        238,
    ),
    # Anti-entropy
    Ablation(
        "owners do not look for rows without copies", replace(_ALL, owner_repairs=""), "retry here twice", STUCK, 5703
    ),
    Ablation(
        "... only for those that are ASSIGNED", replace(_ALL, owner_repairs="A"), "failover, store lost", STUCK, 3639
    ),
    Ablation(
        "... not in their own memory",
        replace(_ALL, owner_sees_memory=False),
        "retry here twice",
        owner.TAKEN_FROM_ITSELF,
        32,
    ),
    Ablation(
        "a job whose put was not answered is given back",
        replace(_ALL, unanswered_stays=False),
        "cancel, lost puts",
        work.STARTED_AFTER_END,
        463,
    ),
    Ablation(
        "... is put again although its copy lies in the bucket",
        replace(_ALL, looks_in_bucket=False),
        "cancel, lost puts",
        work.STARTED_AFTER_END,
        2556,
    ),
    Ablation(
        "keys of a dead bucket are not resurrected",
        replace(_ALL, resurrects=False),
        "store rolled back, sent twice",
        STUCK,
        6560,
    ),
    Ablation(
        "a resurrected bucket is ACTIVE for a moment",
        replace(_ALL, resurrects_at_once=False),
        "store rolled back, sent twice",
        STUCK,
        8642,
    ),
    Ablation(
        "an owner declares a bucket LOST once and never looks again",
        replace(_ALL, declares_again=False),
        "failover, store lost",
        STUCK,
        3881,
    ),
    # Changes of jobs that wait
    Ablation(
        "a job without a row is recalled before it has one", replace(_ALL, row_first=False), "change", LOST_JOB, 12
    ),
    Ablation(
        "the row of a changed job is held before its copy is recalled",
        replace(_ALL, recall_first=False),
        "change",
        changes.STARTS_AS_BEFORE,
        12,
    ),
    Ablation(
        "the row of a recalled job is held whatever its assignment is by then",
        replace(_ALL, recalled_identity=False),
        "change",
        master.STRANGER,
        146,
    ),
    # Cancel and archive
    Ablation(
        "cancelling a job without a row leaves only a request in the store",
        replace(_ALL, tombstone=False),
        "cancel, fenced start",
        master.CANCEL_FORGOTTEN,
        227,
    ),
    Ablation(
        "HELD forgets a cancel request",
        replace(_ALL, flag_kept=False),
        "cancel, fenced start",
        master.CANCEL_FORGOTTEN,
        385,
    ),
    Ablation(
        "a fenced start does not ask for a cancel request",
        replace(_ALL, start_minds_flag=False),
        "cancel, fenced start",
        work.CANCELLED_START,
        61,
    ),
    Ablation("no watermark", replace(_ALL, watermark=False), "archive, sent twice", master.RUN_AGAIN, 587),
    Ablation(
        "the watermark passes a job that only a store has",
        replace(_ALL, watermark_waits=False),
        "archive, sent twice",
        LOST_JOB,
        160,
    ),
)
ABLATIONS = {each.name: each for each in _ABLATIONS}

SECOND_LINES = {
    "in_flight_only": "a write needs a row in flight: HELD rows have no bucket, so no identity fits them",
    "held_clears_bucket": "HELD clears the bucket: no write is accepted on a HELD row",
    "rescuer_lock": "a rescuer's pages and sweeps lock its bucket: token, state and watermark refuse what comes late",
    "leader_sweep": "the leader returns rows of dead buckets: no drain or exit is closed while one is left",
    "counter_floor": "an owner notices an older store: unknown lists are read again, rows refuse what was settled before",
}
"""Rules that another rule stands behind: switching one of them off breaks nothing that the model sees."""
