"""The rules of the protocol as switches, and what may go wrong in one exploration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Rules:
    """Every rule that the safety of jobs rests on. All on: the protocol. Each is switched off in the ablations."""

    # Identity and state on the row
    identity: str = "tbe"
    """Compared on the row: t(oken), b(ucket), e(poch)."""
    in_flight_only: bool = True
    """A write about an assignment needs a row that is ASSIGNED or PROCESSING."""
    final_is_final: bool = True
    """Weaker than ``in_flight_only``, and what is left of it when that is off."""
    held_clears_bucket: bool = True
    held_begins_at_one: bool = True
    """The token of a HELD row that a producer inserts is 1, never 0."""
    rescuer_bumps: bool = True
    retry_here_bumps: bool = True
    upsert_known: bool = True
    """The outcome of a job that had a row is an upsert too: after a failover the row may be missing."""
    due_tells_retry: bool = True
    """A retry here is taken for our own success only if the row bears its due time."""
    # Bucket lock
    bucket_lock: bool = True
    """In-flight rows, retry-here and onboarding lock the bucket's row and check epoch, owner and state."""
    rescuer_lock: bool = True
    two_refusals: bool = True
    """A refusal by the bucket settles nothing."""
    # Claimed lists and memory
    commit_before_delete: bool = True
    whole_lists: bool = True
    """A claimed list is deleted when every entry of it is known to the master, not when one is."""
    reread_lists: bool = True
    one_live_copy: bool = True
    duplicate_waits: bool = True
    """The list of a second copy stays until the first copy has settled."""
    store_fence: bool = True
    counter_floor: bool = True
    # Rescue
    sweep: bool = True
    highest_epoch: bool = True
    """A rescuer takes the bucket above the epochs of master and store."""
    owner_declares: bool = True
    """An owner that a store refuses declares its bucket LOST."""
    minds_stop: bool = True
    """... but not one that an operator has frozen: refused by its lock, it asks the row, and keeps what it holds."""
    kept_first: bool = True
    rescuer_commits_first: bool = True
    rescuer_minds_final: bool = True
    rescuer_minds_bucket: bool = True
    rescuer_looks_again: bool = True
    """A rescuer looks for buckets that it has taken and does not know of."""
    certificate_cas: bool = True
    # Suspended
    term_needs_owner: bool = True
    """The store grants a term under the bucket's fence alone."""
    rescuer_waits: bool = True
    """A rescuer that has fenced waits for the end of the former owner's term."""
    owner_gives_up_first: bool = True
    start_needs_term: bool = True
    keeps_first: bool = True
    """Memory lets go of an outcome after the store has it."""
    apply_commits_first: bool = True
    owner_applies: bool = True
    """The owner of a bucket at work applies what it keeps."""
    repair_minds_kept: bool = True
    """Anti-entropy looks for no copies while outcomes are kept."""
    # Anti-entropy
    owner_repairs: str = "AP"
    """States of rows without a copy that the owner gives back."""
    owner_sees_memory: bool = True
    """... and a copy in its own memory is a copy."""
    unanswered_stays: bool = True
    """The row of a job whose put was not answered stays as it is, and the copy is put again: it may lie there."""
    looks_in_bucket: bool = True
    """... unless the copy lies in the bucket, perhaps in a list that memory does not know."""
    leader_sweep: bool = True
    resurrects: bool = True
    """Keys of a dead bucket that hold jobs are resurrected."""
    resurrects_at_once: bool = True
    """The row of a resurrected bucket is LOST from the start."""
    declares_again: bool = True
    """An owner that has disowned a bucket looks again whether the master still names it."""
    # Changes of jobs that wait
    row_first: bool = True
    """A job without a row gets one before its copy is recalled."""
    recall_first: bool = True
    """The copy is recalled before the row is held."""
    recalled_identity: bool = True
    """The row is held by the identity of the recalled copy."""
    # Cancel and archive
    tombstone: bool = True
    flag_kept: bool = True
    start_minds_flag: bool = True
    watermark: bool = True
    watermark_waits: bool = True
    """The watermark never passes an id that a store may hold alone."""


@dataclass(frozen=True)
class Scope:
    """What happens in one exploration. All off: one job, submitted once, acknowledged, claimed, run, recorded."""

    jobs: int = 1
    sends: int = 1
    """How often a producer sends the same job; an acknowledgement may be lost when there is another try."""
    to_bucket_2: bool = False
    to_master: bool = False
    sister: bool = False
    """Bucket 2 belongs to A as well, in another slot of the store."""
    copies: int = 1
    """How many entries A holds in memory."""
    crash: bool = False
    zombie: bool = False
    """A certificate while A lives."""
    lost_claims: bool = False
    lost_commits: bool = False
    lost_puts: bool = False
    failures: int = 0
    retry_here: bool = False
    gives_back: bool = False
    """A gives queued jobs back (spill of a full bucket, a handler it lacks)."""
    onboards: bool = True
    persists: bool = True
    fenced_start: bool = False
    keeps_outcomes: bool = False
    suspends: bool = False
    """Jobs start only under the store's term, and kept outcomes leave memory."""
    rescuer_crash: bool = False
    rescuer_zombie: bool = False
    rescuer_unaware: bool = False
    store_loss: bool = False
    rollback: bool = False
    failover: bool = False
    cancel: bool = False
    changes: bool = False
    """A client changes a job that waits in the bucket."""
    archive: bool = False
    exits: bool = False
    freezes: bool = False
    leased: bool = False
    """Leases and certificates step by step."""


class Setting(NamedTuple):
    """One exploration: which rules hold, and what may happen."""

    rules: Rules
    scope: Scope
