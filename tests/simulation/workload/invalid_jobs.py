"""Invalid jobs among the others: entries that no table accepts, or that cannot be decoded; and the check where each of them
is at the end.

A foreign client may put anything into a bucket. Nothing of it may be dropped without a trace, and no other job may wait for
it: it is kept whole, in quarantine or in its bucket, until an operator has seen it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from jobmaster.agentstore.entries import UNDECODABLE_HANDLER
from jobmaster.codec import encode_entry
from jobmaster.model.ids import text
from jobmaster.model.job import Entry
from tests.simulation.checks.audit import Job
from tests.simulation.master.statements_base import INT4_MAX
from tests.simulation.store.functions import id_of

if TYPE_CHECKING:
    from tests.simulation.history import History

INVALID_KINDS = ("nul", "junk", "worn")
"""``nul``: its handler's name holds a NUL, so that no statement takes it. ``junk``: no entry at all, with an id where entries
have it. ``worn``: it has used up so many attempts that its row can be written and its outcome cannot."""
_AT_WORK = ("ACTIVE", "COMPLETING")


def raw_of(job: Job) -> bytes:
    """As it is put into a bucket."""
    if job.kind == "junk":
        return b"\x98\xc4\x10" + job.id + b"\xc1 nobody reads this"
    if job.kind == "worn":
        return encode_entry(Entry(job.id, 1, "plain", b"{}", attempt=INT4_MAX))
    return encode_entry(Entry(job.id, 1, "nul\0", b"{}"))


def unaccounted(history: History) -> list[str]:
    """Acknowledged invalid jobs that are not where they must be; some time after healing there are none."""
    invalid_jobs = [
        job for job in history.audit.jobs.values() if job.kind in INVALID_KINDS and job.level and not job.may_be_lost
    ]
    if not invalid_jobs:
        return []
    lying = {
        id_of(item)
        for server in history.stores.values()
        for bucket in server.functions.buckets.values()
        for item in (*bucket.items(), *bucket.kept)
    }
    found = [(job, _wrong(history, job, lies=job.id in lying)) for job in invalid_jobs]
    return [f"{text(job.id)} ({job.kind}) {wrong}" for job, wrong in found if wrong]


def _wrong(history: History, job: Job, *, lies: bool) -> str:
    tables = history.master.statements.tables
    row = tables.jobs.get(job.id)
    kept = [(reason, entry) for (job_id, reason), (_, entry) in tables.quarantine.items() if job_id == job.id]
    if row is None and not kept and not lies:
        return "is neither in a store nor in quarantine, and has no row"
    if any(not _is_whole(job, reason, entry) for reason, entry in kept):
        return "is not whole in quarantine"
    if job.kind == "worn":
        return _wrong_with_worn(history, job, lies=lies, kept=bool(kept))
    if row is not None and (job.kind == "nul" or row.handler != UNDECODABLE_HANDLER or row.state != "HELD"):
        return f"has a row: {row.state} of {row.handler!r}"
    if kept and row is not None:
        return "counts twice: in quarantine and as a row"
    if kept and lies and not history.audit.words_lost:
        return "counts twice: in quarantine and in a store"
    return ""


def _wrong_with_worn(history: History, job: Job, *, lies: bool, kept: bool) -> str:
    """It has a row like any other job, and an outcome that cannot be written: then its row names a working bucket whose
    owner keeps the outcome."""
    tables = history.master.statements.tables
    row = tables.jobs.get(job.id)
    if row is None or row.state in ("HELD", "FAILED") or lies or kept:
        return ""
    if row.state not in ("ASSIGNED", "PROCESSING"):
        return f"ended as {row.state}, which cannot be stored"
    bucket = tables.buckets.get(row.bucket_id or b"")
    if bucket is None or bucket.state not in _AT_WORK or bucket.epoch != row.bucket_epoch:
        return "is in flight in a bucket that is not at work"
    parts: list[Any] = [host.process.parts for host in history.hosts if host.process and host.process.alive]
    if any(job.id in (each.id for each in _live(there)) for there in parts):
        return ""
    return "is in flight, and no agent has it"


def _live(parts: Any) -> list[Entry]:
    return [live.entry for live in parts.bucket_worker.job_table] if hasattr(parts, "bucket_worker") else []


def _is_whole(job: Job, reason: str, entry: bytes) -> bool:
    """The very bytes; of an outcome, or of a row that vanished below the floor, all that makes the job."""
    if reason.startswith(("claimed", "pending", "assigned")):
        return entry == raw_of(job)
    found = str(msgspec.msgpack.decode(entry)).encode()
    return job.id in entry and (raw_of(job).hex().encode() in found if job.kind == "junk" else b"{}" in found)
