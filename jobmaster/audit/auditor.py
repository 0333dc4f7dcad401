"""Count violations of every invariant, with evidence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from jobmaster.audit.invariants import INVARIANTS, Invariant, Parameter, statement
from jobmaster.model.ids import text
from jobmaster.ports import FIND_IDS_MAX, AuditStore

_IDS_PER_QUERY = 5000
_SCAN_MAX = 1_000_000
LOWEST_ID = bytes(16)


class MasterReader(Protocol):
    """Read access of the auditor to the master: any statement."""

    async def rows(self, statement: str, *values: object) -> Sequence[Mapping[str, Any]]:
        """Rows by column name."""
        ...


class Evidence(NamedTuple):
    """One violation: an id or a name, and the fault."""

    subject: str
    detail: str


@dataclass(frozen=True, slots=True)
class AuditScope:
    """The part of the cluster to audit, and limits of the evidence."""

    floor: bytes = LOWEST_ID
    """Lowest job id; rows below it are skipped."""
    quiet_seconds: float = 30.0
    """I8 skips in-flight rows that changed more recently. Longer than lease and failure detection together."""
    evidence_rows: int = 10
    """Rows of evidence kept per invariant; all are counted."""
    acknowledged: Sequence[bytes] | None = None
    """Ids with a receipt of a producer (I5). ``None``: I5 only looks for jobs in unknown buckets."""
    missing_max: int = 2000
    """Maximum of ids without a row to search in the stores; further ones count as missing."""


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The result of an audit."""

    violations: dict[str, int] = field(default_factory=dict)
    """Number of the invariant -> count of violations."""
    evidence: dict[str, list[Evidence]] = field(default_factory=dict)
    """The first violations of each invariant that has any."""

    @property
    def clean(self) -> bool:
        return not any(self.violations.values())


async def audit(master: MasterReader, stores: Mapping[str, AuditStore], scope: AuditScope | None = None) -> AuditReport:
    """Check every invariant.

    Args:
        master: read-only access to the schema of the cluster.
        stores: every agent store of the cluster by name.
        scope: ``None``: everything in the master.
    """
    scope = scope or AuditScope()
    report = AuditReport()
    for invariant in INVARIANTS:
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
    master: MasterReader, stores: Mapping[str, AuditStore], scope: AuditScope
) -> tuple[int, list[Evidence]]:
    """Acknowledged jobs that are in neither master nor stores, and jobs in buckets that the master does not know."""
    known = {row["id"].bytes: str(row["store"]) for row in await master.rows(statement("i5_known_buckets"))}
    count, evidence = await _unknown_buckets(known, stores)
    missing = await _without_row(master, scope.acknowledged or ())
    found = await _find_in_stores(missing[: scope.missing_max], known, stores)
    # A job may finish, and its list be deleted, between the two reads: read rows again for jobs that no store has.
    for job_id in await _without_row(master, [job_id for job_id in missing if job_id not in found]):
        count += 1
        evidence.append(Evidence(subject=text(job_id), detail="acknowledged, but neither in the master nor in a store"))
    return count, evidence[: scope.evidence_rows]


async def _unknown_buckets(known: Mapping[bytes, str], stores: Mapping[str, AuditStore]) -> tuple[int, list[Evidence]]:
    count, evidence = 0, []
    for name, store in stores.items():
        unknown = [bucket_id for bucket_id in await store.known_buckets() if bucket_id not in known]
        for bucket_id, depth in zip(unknown, await store.depths(unknown) if unknown else [], strict=True):
            jobs = (depth.pending + depth.assigned + depth.claimed_lists + depth.kept) if depth else 0
            if jobs:
                count += 1
                detail = f"holds jobs in store {name}, but the master has no such bucket"
                evidence.append(Evidence(subject=text(bucket_id), detail=detail))
    return count, evidence


async def _without_row(master: MasterReader, ids: Iterable[bytes]) -> list[bytes]:
    """Ids without a row (and not below the watermark), in order."""
    missing: list[bytes] = []
    ordered = sorted(set(ids))
    for start in range(0, len(ordered), _IDS_PER_QUERY):
        part = [UUID(bytes=job_id) for job_id in ordered[start : start + _IDS_PER_QUERY]]
        rows = await master.rows(statement("i5_missing_rows"), part, part[0], part[-1])
        missing.extend(row["id"].bytes for row in rows)
    return missing


async def _find_in_stores(
    ids: Sequence[bytes], known: Mapping[bytes, str], stores: Mapping[str, AuditStore]
) -> set[bytes]:
    found: set[bytes] = set()
    for name, store in stores.items():
        here = [bucket_id for bucket_id, store_name in known.items() if store_name == name]
        depths = await store.depths(here) if here else []
        filled = [bucket_id for bucket_id, depth in zip(here, depths, strict=True) if depth is not None]
        for bucket_id in filled:
            wanted = [job_id for job_id in ids if job_id not in found]
            for start in range(0, len(wanted), FIND_IDS_MAX):
                (entries,) = await store.find([bucket_id], wanted[start : start + FIND_IDS_MAX], _SCAN_MAX)
                found.update(entries)
    return found
