"""Branches that a long run must take at least once: a recovery that no history needs is not tested by any history."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

BRANCHES: Mapping[str, str] = {
    "an agent dies and is certified by its lease": "certificate by lease",
    "... by its supervisor's proof": "certificate by proof",
    "an agent fences itself": "agent_fenced",
    "an agent leaves in order": "clean exit",
    "a bucket completes and is retired by its owner": "bucket COMPLETING -> READY_TO_DELETE",
    "a bucket is lost while it completes": "bucket COMPLETING -> LOST",
    "a lost bucket is taken": "bucket LOST -> DRAINING",
    "a rescuer dies or leaves in the middle": "bucket DRAINING -> LOST",
    "a rescue ends": "bucket DRAINING -> READY_TO_DELETE",
    "a rescue is put off": "bucket_drain_postponed",
    "a rescuer finds that another has the bucket": "bucket_drain_superseded",
    "a leaving rescuer gives its bucket back": "bucket_given_back",
    "a rescuer moves a job that has no row": "rescue: job without a row",
    "... one that has a row": "rescue: job with a row",
    "... leaves an entry alone that its row refuses": "rescue: entry refused by its row",
    "... gives back a row that has no copy": "rescue: row swept",
    "an owner forgets a bucket that is another's": "bucket_forgotten",
    "an owner gives back rows without copies": "rows_released",
    "keys of a forgotten bucket are resurrected": "bucket_resurrected",
    "a store joins late": "store_joined",
    "an emptied store is noticed": "store_emptied",
    "a store is silent for several leases, and the others are not concerned": "outlasted: store silent for several leases",
    "a store is full for several leases, and its agents live on": "outlasted: store full for several leases",
    "a store loses jobs of which their owner has the only copy": "only its owner has it",
    "... who writes them to the master": "salvaged",
    "outcomes are kept in the store": "outcomes_kept",
    "an outcome sent again is found to be written": "resent final: accepted",
    "... one of a superseded owner is refused": "resent final: refused",
    "a job given back again is found to be HELD": "resent held: accepted",
    "... refused": "resent held: refused",
    "a retry here sent again is found to be written": "resent kept_here: accepted",
    "an in-flight write is refused by its row": "resent persisted: refused",
    "... meets a cancel request": "resent persisted: cancelled",
    "a slow job is given to another agent": "reassigned",
    "... too often": "too slow",
    "a key belongs to another job": "duplicate key",
    "a job that its handler put off succeeds": "snoozing: SUCCEEDED",
    "... one that its handler fails for good has no other attempt": "failing: FAILED",
    "... nor one that the rules of its handler give up": "given up: FAILED",
    "finished jobs are archived": "row archived",
    "a batch is halved because the master did not finish it in its time": "statement timed out",
    "an owner puts aside what the master refuses for its value": "job_unwritable",
    "... finds such outcomes among those that its bucket keeps": "kept outcomes that cannot be written",
    "a rescuer finds such an entry in a claimed list": "entry_quarantined: claimed",
    "... among those that wait": "entry_quarantined: pending",
    "... among kept outcomes": "entry_quarantined: kept",
    "an agent applies a pause": "pauses_changed",
    "a job gets its permits": "limit: permit",
    "... is denied one": "limit: no permit",
    "... waits for one that another agent has freed": "limit: waits elsewhere",
    "a fire of a schedule has a job": "fire: fired",
    "... is skipped, because an earlier job has not ended": "fire: skipped",
    "... is missed": "fire: missed",
    "... is withdrawn by a change of its schedule": "fire: withdrawn",
    "a signal reaches a job that waits for it": "signal: sent",
    "... one that comes later": "signal: kept",
    "a wait for a signal is over": "signal: too late",
    "a step of a workflow ends": "workflow: step ended",
    "... and the next one stays in the bucket": "workflow: next step in the same bucket",
    "a workflow succeeds": "workflow: SUCCEEDED",
    "... fails": "workflow: FAILED",
    "... is cancelled": "workflow: CANCELLED",
    "a program loses its lock": "lock: LockLost",
    "... waits for it in vain": "lock: LockHeld",
    "a program runs an action once": "once: done here",
    "... finds that it is done": "once: done elsewhere",
    "... loses the lock of the action before its record": "once: LockLost",
    "an action fails": "once: ActionFailed",
    "the leader changes": "leader_superseded",
    "... resigns": "leader_resigned",
    "... gives its lease to a heavier agent": "the leader's lease goes to a heavier agent",
}
"""Branch -> what counts it."""


def table(hits: Counter[str]) -> dict[str, int]:
    """How often each branch was taken."""
    return {branch: hits[key] for branch, key in BRANCHES.items()}


def never(hits: Counter[str]) -> list[str]:
    """Branches that no history has taken."""
    return [branch for branch, count in table(hits).items() if count == 0]
