"""Count violations of every invariant, with evidence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from jobmaster.audit.invariants import INVARIANTS, Invariant, Parameter, statement
from jobmaster.model.bucket import BucketDepth
from jobmaster.model.ids import text
from jobmaster.model.job import Entry
from jobmaster.ports import FIND_IDS_MAX

_ASK_AT_ONCE = 5000
_SCAN_MAX = 1_000_000
LOWEST_ID = bytes(16)


class MasterReader(Protocol):
    """How the auditor reads the master: any statement, no changes."""

    async def rows(self, statement: str, *values: object) -> Sequence[Mapping[str, Any]]:
        """Rows by column name."""
        ...


class StoreReader(Protocol):
    """What the auditor reads from an agent store."""

    async def known_buckets(self) -> list[bytes]: ...

    async def depths(self, bucket_ids: Sequence[bytes]) -> list[BucketDepth | None]: ...

    async def find(
        self, bucket_ids: Sequence[bytes], job_ids: Sequence[bytes], scan_max: int
    ) -> list[dict[bytes, Entry]]: ...


class Evidence(NamedTuple):
    """One violation: an id or a name, and what is wrong with it."""

    subject: str
    detail: str


@dataclass(frozen=True, slots=True)
class AuditScope:
    """What to look at, and how closely."""

    floor: bytes = LOWEST_ID
    """Lowest job id; rows below it are taken for audited before."""
    quiet_seconds: float = 30.0
    """In-flight rows that changed more recently are not judged by I8: longer than lease and detection together."""
    evidence_rows: int = 10
    """Rows of evidence kept per invariant; all are counted."""
    acknowledged: Sequence[bytes] | None = None
    """Ids that some producer got receipts for (I5). Without them I5 looks only for jobs that nobody would find."""
    missing_max: int = 2000
    """At most so many ids without a row are looked for in the stores; the others count as missing."""


@dataclass(frozen=True, slots=True)
class AuditReport:
    """What was found."""

    violations: dict[str, int] = field(default_factory=dict)
    """Number of the invariant -> count; 0 is what it should be."""
    evidence: dict[str, list[Evidence]] = field(default_factory=dict)
    """The first violations of each invariant that has any."""
    not_applicable: dict[str, str] = field(default_factory=dict)
    """Invariants about which there is nothing to check, and why."""

    @property
    def clean(self) -> bool:
        return not any(self.violations.values())


async def audit(
    master: MasterReader, stores: Mapping[str, StoreReader], scope: AuditScope | None = None
) -> AuditReport:
    """Check every invariant.

    Args:
        master: read-only access to the schema of the cluster.
        stores: every agent store of the cluster by name.
        scope: ``None`` looks at everything that is in the master.
    """
    scope = scope or AuditScope()
    report = AuditReport()
    for invariant in INVARIANTS:
        if invariant.not_applicable is not None:
            report.not_applicable[invariant.number] = invariant.not_applicable
            continue
        if invariant.statement is not None:
            count, evidence = await _by_statement(master, invariant, scope)
        else:
            count, evidence = await _every_job_is_found(master, stores, scope)
        report.violations[invariant.number] = count
        if evidence:
            report.evidence[invariant.number] = evidence
    return report


async def _by_statement(master: MasterReader, invariant: Invariant, scope: AuditScope) -> tuple[int, list[Evidence]]:
    assert invariant.statement is not None
    values: dict[Parameter, object] = {
        Parameter.LIMIT: scope.evidence_rows,
        Parameter.FLOOR: UUID(bytes=scope.floor),
        Parameter.QUIET: scope.quiet_seconds,
    }
    rows = await master.rows(statement(invariant.statement), *(values[name] for name in invariant.parameters))
    evidence = [Evidence(subject=str(row["subject"]), detail=str(row["detail"])) for row in rows]
    return (int(rows[0]["total"]) if rows else 0), evidence


# ---------------------------------------------------------------- I5


async def _every_job_is_found(
    master: MasterReader, stores: Mapping[str, StoreReader], scope: AuditScope
) -> tuple[int, list[Evidence]]:
    """Acknowledged jobs that are nowhere, and jobs in buckets that the master does not know (nobody would find them)."""
    known = {row["id"].bytes: str(row["store"]) for row in await master.rows(statement("i5_known_buckets"))}
    count, evidence = await _unknown_buckets(known, stores)
    missing = await _without_row(master, scope.acknowledged or ())
    found = await _find_in_stores(missing[: scope.missing_max], known, stores)
    # A job may have been finished and its list deleted between the two looks: what is in no store is asked for again.
    for job_id in await _without_row(master, [job_id for job_id in missing if job_id not in found]):
        count += 1
        evidence.append(Evidence(subject=text(job_id), detail="acknowledged, but neither in the master nor in a store"))
    return count, evidence[: scope.evidence_rows]


async def _unknown_buckets(known: Mapping[bytes, str], stores: Mapping[str, StoreReader]) -> tuple[int, list[Evidence]]:
    count, evidence = 0, []
    for name, store in stores.items():
        strangers = [bucket_id for bucket_id in await store.known_buckets() if bucket_id not in known]
        for bucket_id, depth in zip(strangers, await store.depths(strangers) if strangers else [], strict=True):
            jobs = (depth.pending + depth.assigned + depth.claimed_lists + depth.spilled) if depth else 0
            if jobs:
                count += 1
                detail = f"holds jobs in store {name}, but the master knows no such bucket"
                evidence.append(Evidence(subject=text(bucket_id), detail=detail))
    return count, evidence


async def _without_row(master: MasterReader, ids: Iterable[bytes]) -> list[bytes]:
    """Those of the ids that have no row (and are not below the watermark), in order."""
    missing: list[bytes] = []
    ordered = sorted(set(ids))
    for start in range(0, len(ordered), _ASK_AT_ONCE):
        part = [UUID(bytes=job_id) for job_id in ordered[start : start + _ASK_AT_ONCE]]
        rows = await master.rows(statement("i5_missing_rows"), part, part[0], part[-1])
        missing.extend(row["id"].bytes for row in rows)
    return missing


async def _find_in_stores(
    ids: Sequence[bytes], known: Mapping[bytes, str], stores: Mapping[str, StoreReader]
) -> set[bytes]:
    found: set[bytes] = set()
    for name, store in stores.items():
        here = [bucket_id for bucket_id, place in known.items() if place == name]
        depths = await store.depths(here) if here else []
        filled = [bucket_id for bucket_id, depth in zip(here, depths, strict=True) if depth is not None]
        for bucket_id in filled:
            wanted = [job_id for job_id in ids if job_id not in found]
            for start in range(0, len(wanted), FIND_IDS_MAX):
                (entries,) = await store.find([bucket_id], wanted[start : start + FIND_IDS_MAX], _SCAN_MAX)
                found.update(entries)
    return found
