"""``jobmaster doctor``: checks of the cluster and its servers, and an audit of the invariants."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from jobmaster.cli.invocation import Invocation, pass_invocation
from jobmaster.cli.running import run_async
from jobmaster.cli.tables import Column, Output, emit_data, render, terminal_width
from jobmaster.doctor.findings import CheckStatus, Finding

if TYPE_CHECKING:
    from jobmaster.agentstore.store import AgentStore
    from jobmaster.audit import AuditReport
    from jobmaster.master.reports import Reader
    from jobmaster.settings.model import ClusterSettings

EXIT_FINDINGS = 5
COLUMNS = (Column("", "status"), Column("CHECK", "name"), Column("DETAIL", "detail", whole=True))


@click.command("doctor")
@click.option(
    "--audit-days", type=click.IntRange(0), default=7, show_default=True, help="Audit jobs created since; 0: all."
)
@pass_invocation
@click.pass_context
def doctor(ctx: click.Context, invocation: Invocation, audit_days: int) -> None:
    """Check the cluster, its servers and its invariants.

    Changes nothing. The result of a check is ok, warn or FAIL, with a remedy for the latter two. Exit code 5 when one fails.
    With -o name: the checks that are not ok.

    \b
    Examples:
      jobmaster doctor
      jobmaster doctor -o json --audit-days 0
    """
    findings, report = run_async(_examine(invocation.settings, audit_days))
    ok = not any(finding.status is CheckStatus.FAIL for finding in findings)
    if invocation.output is Output.NAME:
        emit_data([{"name": f.name} for f in findings if f.status is not CheckStatus.OK], invocation.output)
    elif not emit_data(_record(ok, findings, report), invocation.output):
        rows = [{"status": f.status.value, "name": f.name, "detail": f.detail} for f in findings]
        click.echo(render(rows, COLUMNS, terminal_width()))
        for finding in findings:
            if finding.fix and finding.status is not CheckStatus.OK:
                click.echo(f"-> {finding.name}: {finding.fix}")
        if report is not None:
            _print_audit(report)
    if not ok:
        ctx.exit(EXIT_FINDINGS)


def _record(ok: bool, findings: list[Finding], report: AuditReport | None) -> dict[str, Any]:
    return {
        "ok": ok,
        "checks": [
            {"name": f.name, "status": f.status.value, "detail": f.detail, "fix": f.fix or None} for f in findings
        ],
        "invariants": report.violations if report else None,
        "evidence": {number: [row._asdict() for row in rows] for number, rows in report.evidence.items()}
        if report
        else {},
    }


def _print_audit(report: AuditReport) -> None:
    from jobmaster.audit import INVARIANTS

    for invariant in INVARIANTS:
        count = report.violations.get(invariant.number)
        if count:
            click.echo(f"{invariant.number} ({invariant.sentence}): {count} violation(s)")
            for row in report.evidence.get(invariant.number, ()):
                click.echo(f"    {row.subject}  {row.detail}")


async def _examine(settings: ClusterSettings, audit_days: int) -> tuple[list[Finding], AuditReport | None]:
    """The findings, the audit's at the end; and its report, where it could be made."""
    from jobmaster.doctor.examination import examine

    reports: list[AuditReport] = []

    async def audited(reader: Reader, stores: Mapping[str, AgentStore]) -> Finding:
        reports.append(await _audit(settings, reader, stores, audit_days))
        return _audit_finding(reports[0])

    findings = await examine(settings, audited)
    return findings, reports[0] if reports else None


async def _audit(
    settings: ClusterSettings, reader: Reader, stores: Mapping[str, AgentStore], audit_days: int
) -> AuditReport:
    from jobmaster.audit import AuditScope, audit

    floor = bytes(16)
    if audit_days:
        now_us = (await reader.report("server"))[0]["now_us"]
        floor = max(0, now_us // 1000 - audit_days * 86_400_000).to_bytes(6, "big") + bytes(10)
    quiet = settings.leases.lease_seconds * 2 + settings.leases.grace_seconds
    return await audit(reader, stores, AuditScope(floor=floor, quiet_seconds=quiet))


def _audit_finding(report: AuditReport) -> Finding:
    broken = {number: count for number, count in report.violations.items() if count}
    if not broken:
        return Finding("invariants", CheckStatus.OK, f"{', '.join(report.violations)}: no violation")
    detail = ", ".join(f"{number}: {count}" for number, count in broken.items())
    return Finding(
        "invariants", CheckStatus.FAIL, detail, "keep the databases as they are and report it with the evidence below"
    )
