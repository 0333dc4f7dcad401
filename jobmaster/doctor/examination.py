"""All checks of a cluster, one after another."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack

from jobmaster.agentstore.store import AgentStore
from jobmaster.doctor.checks import agent_findings, master_findings, schema_finding, store_findings
from jobmaster.doctor.findings import CheckStatus, Finding
from jobmaster.master.reports import Reader
from jobmaster.model.errors import JobMasterError
from jobmaster.settings.model import ClusterSettings
from jobmaster.wiring import open_reader

Audit = Callable[[Reader, Mapping[str, AgentStore]], Awaitable[Finding]]
"""The last check: it reads by the reader, and from the stores that answer."""

WHY: Mapping[str, str] = {
    "master.reachable": "Agents go on with what they have for as long as their stores confirm them; nothing else does.",
    "master.version": "Statements of this program need what an older PostgreSQL does not have.",
    "master.schema": "A program on a schema that it does not know may write what others cannot read.",
    "master.durability": "Jobs that were acknowledged as stored can be gone after a crash of the machine.",
    "master.clock": "Due times and ids are made by producers: jobs may start too early, too late, or be refused.",
    "master.partitions.job": "Without a partition for the day no job of it can be recorded.",
    "master.partitions.attempt": "Without a partition for the day no attempt of it can be recorded.",
    "master.retirement": "Every change of an old job is noted until the retirement continues.",
    "master.retention": "The master grows, and its oldest jobs stay longer than the configuration says.",
    "cluster.mode": "A cluster that is not active runs no jobs.",
    "agents.alive": "Jobs wait until an agent takes them.",
    "agents.leader": "Without a leader no due job is announced, no schedule fires, and no dead agent is noticed.",
    "agents.hosts": "The other hosts do the work of this one, and its cause will end their agents, too, if it is a job.",
    "suspicions": "A clock, a store or the master may not keep what the cluster relies on.",
    "agents.settings": "The moment of a rescue cannot be foretold where leases differ.",
    "agents.clock": "What an agent notes with its own clock does not fit what others note.",
    "agents.handlers": "Jobs that an agent cannot run are given back, which costs time.",
    "jobs.handlers": "These jobs wait for ever.",
    "jobs.served": "These jobs wait for ever.",
    "jobs.overdue": "Jobs start later than they were asked to.",
    "jobs.in_flight": "These jobs run nowhere until they are given back.",
    "schedules": "Fires are late, or their jobs wait.",
    "pauses": "What is paused waits, also what was submitted since.",
    "breakers": "Jobs of these handlers wait in the master.",
    "buckets.rescued": "The jobs in these buckets wait.",
    "quarantine": "These jobs will never run: the master cannot store them.",
    "losses": "Jobs that were acknowledged by a store alone may be gone.",
    "store": "The jobs in its buckets wait, or can be lost with it.",
    "invariants": "A promise of the system was broken.",
}
"""Check -> why its failure matters. The checks of all stores (``store.NAME``) have one sentence."""


def why(check: str) -> str:
    """Why the failure of a check matters; empty: nothing is said of it."""
    return WHY.get("store" if check.startswith("store.") else check, "")


async def examine(settings: ClusterSettings, audit: Audit | None = None) -> list[Finding]:
    """The results of all checks, except those that need a server that does not answer. Changes nothing.

    Args:
        audit: made at the end, where the master answers and has a schema that this program knows.
    """
    findings: list[Finding] = []
    try:
        async with AsyncExitStack() as opened:
            reader = await open_reader(settings)
            opened.push_async_callback(reader.close)
            schema = await schema_finding(settings)
            findings.append(schema)
            if schema.status is CheckStatus.FAIL:
                return findings
            findings += await master_findings(settings, reader)
            findings += await agent_findings(settings, reader)
            found, stores = await store_findings(settings, reader, opened)
            findings += found
            if audit is not None:
                findings.append(await audit(reader, stores))
    except JobMasterError as error:
        findings.append(Finding("master.reachable", CheckStatus.FAIL, error.message, error.hint or ""))
    return findings
