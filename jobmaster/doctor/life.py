"""The doctor's checks of what a cluster does by itself over its life: retention, hosts, suspicions, mode."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobmaster.doctor.findings import CheckStatus, Finding
from jobmaster.model.cluster import ClusterMode
from jobmaster.settings.model import OnSuspicion, RetiredJobs
from jobmaster.units import format_duration, rounded_duration

if TYPE_CHECKING:
    from jobmaster.master.reports import Reader
    from jobmaster.settings.model import ClusterSettings

RETENTION_LATE_SECONDS = 3600.0
"""The leader looks every ten minutes, and a range may take some; later than this, no leader looks."""
SUSPICION_SECONDS = 86_400.0
SUSPICIONS_MAX = 3
OK, WARN = CheckStatus.OK, CheckStatus.WARN


async def retention_finding(settings: ClusterSettings, reader: Reader) -> Finding:
    """Whether jobs leave the master as ``retention.jobs`` says."""
    name, rule = "master.retention", settings.retention.jobs
    if rule.after_seconds is None:
        return Finding(name, OK, "no lifetime of jobs is configured (retention.jobs.after); they leave by command")
    end = "and are dropped" if rule.then is RetiredJobs.DISCARD else "and are kept for the archive"
    stated = f"jobs leave after {format_duration(rule.after_seconds)} {end}"
    rows = await reader.report("retention")
    fix = "restart the agents that may lead with this configuration; see agents.leader"
    if not rows:
        return Finding(name, WARN, f"{stated}; no leader has looked yet", fix)
    look = rows[0]
    last = f"agent {look['agent']} looked {rounded_duration(look['ago_seconds'])} ago"
    if look["ago_seconds"] > RETENTION_LATE_SECONDS:
        return Finding(name, WARN, f"{stated}; {last}, and none since", fix)
    if (look["after_seconds"], look["discards"]) != (rule.after_seconds, rule.then is RetiredJobs.DISCARD):
        other = f"with {format_duration(look['after_seconds'])} and {'discard' if look['discards'] else 'keep'}"
        return Finding(name, WARN, f"{stated}; {last}, {other}", fix)
    if look["blocked"] is not None:
        remedy = "mend what it names, or run `jobmaster db retire` (with --lost-store for a store that is gone)"
        return Finding(name, WARN, f"{stated}; {last}, and a range cannot leave: {look['blocked']}", remedy)
    return Finding(name, OK, f"{stated}; {last}, nothing older is left")


async def hosts_finding(settings: ClusterSettings, reader: Reader) -> Finding:
    """Whether a host is cordoned because its agents die again and again."""
    rule = settings.safety
    hosts = await reader.report("flapping_hosts", rule.flapping_deaths, rule.cordon_seconds)
    if not hosts:
        return Finding("agents.hosts", OK, "no host is cordoned")
    said = [
        f"{row['host']} is cordoned for {rounded_duration(row['left_seconds'])}: its agents died in {row['deaths']} "
        "different minutes of an hour"
        for row in hosts
    ]
    fix = "find out why they die (jobmaster agent list --all, the supervisor's log); other hosts have its buckets meanwhile"
    return Finding("agents.hosts", WARN, "; ".join(said), fix)


async def suspicion_finding(settings: ClusterSettings, reader: Reader) -> Finding:
    """What agents found suspicious in the last day."""
    if settings.safety.on_suspicion is OnSuspicion.IGNORE:
        return Finding("suspicions", OK, "agents do not look for evidence of faults (safety.on_suspicion)")
    found = await reader.report("suspicions", SUSPICION_SECONDS, SUSPICIONS_MAX)
    if not found:
        return Finding("suspicions", OK, "agents found nothing suspicious in a day")
    said = [
        f"{rounded_duration(row['ago_seconds'])} ago {row['kind']}, {row['subject']}: {row['detail']}"
        + (" (its buckets were frozen)" if row["frozen"] else "")
        for row in found
    ]
    fix = "see docs/operations.md, Suspicions; when the cause is gone: jobmaster bucket unfreeze, if buckets are frozen"
    return Finding("suspicions", WARN, "; ".join(said), fix)


async def mode_finding(reader: Reader) -> Finding:
    """Whether the cluster is active."""
    (row,) = await reader.report("cluster_mode")
    name, mode = "cluster.mode", ClusterMode(row["mode"])
    if row["in_doubt"] and mode is not ClusterMode.MIGRATING:
        detail = (
            f"the cluster is {mode}, and {row['in_doubt']} jobs of an interrupted move may be in {row['target']}, too"
        )
        return Finding(name, WARN, detail, "run jobmaster migrate again, with the same target")
    if mode is ClusterMode.MIGRATING:
        moved = f"; {row['moved']} jobs have moved to {row['target']}" if row["target"] else ""
        detail = f"the cluster is migrating and runs no jobs; {row['open_buckets']} buckets are open{moved}"
        return Finding(name, WARN, detail, "go on with jobmaster migrate, or back with jobmaster cluster mode active")
    if mode is ClusterMode.ARCHIVED:
        return Finding(
            name, WARN, "the cluster is archived and takes no jobs", "jobmaster cluster mode active ends that"
        )
    return Finding(name, OK, "active")
