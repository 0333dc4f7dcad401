"""The doctor's checks, one function per part of the cluster."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from jobmaster.agentstore.store import AgentStore
from jobmaster.client.inspect.inspection import OVERDUE_SECONDS
from jobmaster.clock import SystemClock
from jobmaster.doctor.findings import CheckStatus, Finding
from jobmaster.doctor.life import hosts_finding, mode_finding, retention_finding, suspicion_finding
from jobmaster.doctor.store_check import store_record
from jobmaster.master.driver.statements import sql
from jobmaster.master.flow.breakers import LIST as BREAKERS
from jobmaster.master.pauses import FOLLOWERS
from jobmaster.model.errors import JobMasterError
from jobmaster.model.flow.breaker import BreakerState
from jobmaster.model.job import Priority
from jobmaster.model.pause import PauseKind
from jobmaster.rules.pause_text import explained, remedy, schedules_paused
from jobmaster.rules.unserved_cause import UnservedCause
from jobmaster.server_addresses import addresses
from jobmaster.settings.agent_differences import declared_differently, differences
from jobmaster.settings.model import StoreDurability
from jobmaster.units import rounded_duration
from jobmaster.wiring import schema_status

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from jobmaster.master.reports import Reader
    from jobmaster.model.pause import Pause, PausesInForce
    from jobmaster.settings.model import ClusterSettings

POSTGRES_MIN = 15
CLOCK_WARN_SECONDS = 1.0
LOSSES_DAYS = 7
LOSSES_MAX = 1000
LOOK_JOBS = 1000
"""Number of jobs of each lane and priority, the oldest first, whose handlers are checked."""
DECISION_LATE_SECONDS = 60.0
"""A fire is decided ahead of its time, so one that is decided this much too late may be a misfire."""
_NAMES_MAX = 3
_SETTLED_SECONDS = 30.0
"""A bucket younger than this may not have been opened in its store yet, or its loss may not be known."""
_BOUND = re.compile(r"FROM \('([0-9a-f-]+)'\) TO \('([0-9a-f-]+)'\)")
OK, WARN, FAIL = CheckStatus.OK, CheckStatus.WARN, CheckStatus.FAIL


class _Waiting(NamedTuple):
    """Due jobs that no agent can take."""

    cause: UnservedCause
    jobs: int
    oldest_us: int


# ---------------------------------------------------------------- the master


async def schema_finding(settings: ClusterSettings) -> Finding:
    """Whether this program knows the schema."""
    lines = await schema_status(settings)
    wrong = [line for line in lines if line.standing not in ("applied", "newer")]
    if wrong:
        detail = ", ".join(f"{line.number:04d}_{line.name} is {line.standing}" for line in wrong)
        return Finding(
            "master.schema", FAIL, detail, "jobmaster db migrate, or use the program version that made the schema"
        )
    if newer := [f"{line.number:04d}_{line.name}" for line in lines if line.standing == "newer"]:
        detail = f"{', '.join(newer)} of a newer program is applied; this program may run on it"
        return Finding(
            "master.schema", WARN, detail, "end the upgrade: replace the agents and producers that are older"
        )
    return Finding("master.schema", OK, f"{len(lines)} migrations applied, current")


async def master_findings(settings: ClusterSettings, reader: Reader) -> list[Finding]:
    """Version, durability, clock and partitions."""
    before_us = SystemClock().wall_us()
    server = (await reader.report("server"))[0]
    local_us = (before_us + SystemClock().wall_us()) // 2
    version, number = server["version"], server["version_number"] // 10000
    findings = [
        Finding("master.version", OK, f"PostgreSQL {version}")
        if number >= POSTGRES_MIN
        else Finding("master.version", FAIL, f"PostgreSQL {version}", f"use PostgreSQL {POSTGRES_MIN} or newer")
    ]
    off = [name for name in ("fsync", "full_page_writes", "synchronous_commit") if server[name] == "off"]
    if off:
        detail = f"{', '.join(off)} is off: a crash of the machine may lose committed jobs"
        findings.append(
            Finding("master.durability", WARN, detail, "turn it on, unless this cluster may be thrown away")
        )
    else:
        findings.append(
            Finding("master.durability", OK, f"fsync on, synchronous_commit {server['synchronous_commit']}")
        )
    findings.append(_clock(settings, (local_us - server["now_us"]) / 1_000_000))
    for table in ("job", "attempt"):
        findings.append(await _partitions(settings, reader, table, server["now_us"]))
    for row in await reader.report("retirement"):
        if not row["at_work"]:
            detail = (
                f"the retirement of {row['name']} was interrupted; every change of an old job is recorded until it continues "
                f"({row['noted_bytes'] // 1024} KiB so far)"
            )
            fix = "run `jobmaster db retire` or `jobmaster pipeline archive` again, with the age of last time"
            findings.append(Finding("master.retirement", WARN, detail, fix))
    findings.append(await retention_finding(settings, reader))
    return findings


def _clock(settings: ClusterSettings, off_seconds: float) -> Finding:
    detail = (
        f"this machine is {rounded_duration(abs(off_seconds))} {'ahead of' if off_seconds > 0 else 'behind'} the master"
    )
    fix = "synchronise the clocks (NTP): ids and due times are made by producers"
    if abs(off_seconds) >= settings.limits.clock_skew_seconds:
        return Finding("master.clock", FAIL, detail, fix)
    return Finding("master.clock", WARN if abs(off_seconds) > CLOCK_WARN_SECONDS else OK, detail, fix)


async def _partitions(settings: ClusterSettings, reader: Reader, table: str, now_us: int) -> Finding:
    """Whether the partitions cover today (a failure if not), and the configured days ahead except today."""
    ranges = []
    for row in await reader.report("partitions", table):
        if match := _BOUND.search(row["bound"] or ""):
            ranges.append((UUID(match[1]).bytes, UUID(match[2]).bytes))
    name, day_ms, ahead = f"master.partitions.{table}", 86_400_000, settings.partitions.ahead_days

    def covered(days: int) -> bool:
        lowest = (now_us // 1000 + days * day_ms).to_bytes(6, "big") + bytes(10)
        return any(low <= lowest < high for low, high in ranges)

    if away := await reader.report("detached", table):
        detail = (
            f"{', '.join(row['name'] for row in away)}: exists and is not attached; nothing reads or writes its rows"
        )
        return Finding(name, FAIL, detail, f"it was detached by hand; in psql: {away[0]['attach']}")
    days = next((day for day in range(ahead + 1) if not covered(day)), ahead + 1) - 1
    fix = "an agent makes them when it starts and while it leads: is one running?"
    if days < 0:
        return Finding(name, FAIL, f"none of the {len(ranges)} partitions takes jobs created today", fix)
    detail = f"{len(ranges)} partitions, the next {days} day(s) are ready"
    return Finding(name, OK if days >= ahead - 1 else WARN, detail, fix)


# ---------------------------------------------------------------- agents, buckets, jobs


async def agent_findings(settings: ClusterSettings, reader: Reader) -> list[Finding]:
    """Checks of agents, handlers, buckets, waiting jobs, quarantine and losses."""
    agents = await reader.report("agents", False)
    buckets = await reader.report("buckets", False)
    held = await reader.report("held", OVERDUE_SECONDS)
    waiting = _waiting(await reader.report("unserved", 0.0, LOOK_JOBS))
    server = (await reader.report("server"))[0]
    paused = await reader.pauses()
    alive = [agent for agent in agents if agent["lease_left_seconds"] > 0]
    return [
        _alive(agents, alive),
        await mode_finding(reader),
        await hosts_finding(settings, reader),
        await suspicion_finding(settings, reader),
        _led(server, alive),
        _same_settings(alive),
        _clocks(settings, alive),
        _handlers(alive, waiting),
        _runnable(waiting, server["now_us"]),
        _schedules(await reader.report("schedules")),
        _served(buckets, held),
        _overdue(held, paused.pauses),
        await _paused(settings, reader, paused, server["now_us"], await reader.report("paused_schedules")),
        _breakers(await reader.rows(sql(BREAKERS), None), server["now_us"]),
        _settled(settings, buckets),
        await _in_flight(settings, reader),
        await quarantine_finding(reader),
        await loss_finding(reader),
    ]


def _alive(agents: Sequence[Mapping[str, Any]], alive: Sequence[Mapping[str, Any]]) -> Finding:
    if not alive:
        return Finding("agents.alive", FAIL, "no agent is alive: nothing runs", "start one: jobmaster agent run")
    late = [agent["name"] for agent in agents if agent not in alive]
    if late:
        detail = f"{len(alive)} alive; without a lease: {', '.join(late)}"
        return Finding("agents.alive", WARN, detail, "the others rescue their buckets within seconds; see their logs")
    return Finding("agents.alive", OK, f"{len(alive)} alive: {', '.join(agent['name'] for agent in alive)}")


def _led(server: Mapping[str, Any], alive: Sequence[Mapping[str, Any]]) -> Finding:
    if server["leader"] is not None:
        name = next((agent["name"] for agent in alive if agent["id"] == server["leader"]), str(server["leader"]))
        return Finding("agents.leader", OK, str(name))
    able = [agent for agent in alive if agent["weight"] > 0 and agent["mode"] in ("full", "leader")]
    if able:
        return Finding("agents.leader", WARN, "no agent is leader at the moment", "ask again in a few seconds")
    fix = "run an agent of mode full or leader with a weight above 0"
    return Finding("agents.leader", FAIL if alive else WARN, "no agent may lead", fix)


def _same_settings(alive: Sequence[Mapping[str, Any]]) -> Finding:
    """Agents with different leases or thresholds work, but the moment of a rescue is not predictable."""
    published = [(str(agent["name"]), json.loads(agent["settings"])) for agent in alive]
    if found := differences(published):
        fix = "give all agents of a cluster the same leases, thresholds and jobs.max_rescues, and restart the others"
        return Finding("agents.settings", WARN, "; ".join(found), fix)
    return Finding("agents.settings", OK, f"{len(alive)} agent(s) with the same leases and thresholds")


def _clocks(settings: ClusterSettings, alive: Sequence[Mapping[str, Any]]) -> Finding:
    """Clocks at the start of each agent. Later changes are in the agent's log (``clock_skewed``) and in a metric."""
    off = [agent for agent in alive if abs(agent["clock_ahead_seconds"] or 0.0) > CLOCK_WARN_SECONDS]
    if not off:
        return Finding("agents.clock", OK, "the agents' clocks agreed with the master's when they were started")
    detail = [
        f"{agent['name']} on {agent['host']} by {rounded_duration(abs(agent['clock_ahead_seconds']))}" for agent in off
    ]
    worst = max(abs(agent["clock_ahead_seconds"]) for agent in off)
    status = FAIL if worst >= settings.limits.clock_skew_seconds else WARN
    fix = "synchronise the clocks (NTP), and restart these agents"
    return Finding("agents.clock", status, f"off from the master's: {', '.join(detail)}", fix)


def _handlers(alive: Sequence[Mapping[str, Any]], waiting: Sequence[_Waiting]) -> Finding:
    """Agents may have different handlers, if each waiting job has an agent with its handler. Handlers of one name are to
    take the same arguments everywhere."""
    working = [agent for agent in alive if agent["mode"] in ("full", "execution")]
    known: set[str] = set().union(*(agent["handlers"] for agent in working)) if working else set()
    if not known:
        return Finding(
            "agents.handlers", WARN, "no handlers are published", "name modules under handlers: or --handlers"
        )
    by_missing: dict[tuple[str, ...], list[str]] = {}
    for agent in working:
        if missing := tuple(sorted(known.difference(agent["handlers"]))):
            by_missing.setdefault(missing, []).append(_process(agent))
    missed = [f"{len(known)} handlers, {len(working)} agents"]
    missed += [f"{_some(names)}: without {_some(missing)}" for missing, names in by_missing.items()]
    details: list[str] = []
    fixes: list[str] = []
    if by_missing and waiting:
        details += missed
        fixes.append("start all agents of a lane with the same code; jobs an agent cannot run are given back")
    published = [(_process(agent), json.loads(agent["settings"])) for agent in working]
    if found := declared_differently(published):
        details += found
        fixes.append(
            "if these are two applications, give one of them a cluster of its own (`cluster: NAME` in its configuration, or "
            "JOBMASTER_CLUSTER) and run `jobmaster db migrate`; else end the deploy: the same code for all agents"
        )
    if details:
        return Finding("agents.handlers", WARN, "; ".join(details), "; ".join(fixes))
    if not by_missing:
        return Finding("agents.handlers", OK, f"{len(known)} handlers, the same on every agent")
    return Finding("agents.handlers", OK, "; ".join([*missed, "every due job has an agent for it"]))


def _process(agent: Mapping[str, Any]) -> str:
    return f"{agent['name']} (pid {agent['pid']} on {agent['host']})"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMES_MAX} more" if len(names) > _NAMES_MAX else ""
    return f"{', '.join(names[:_NAMES_MAX])}{more}"


def _waiting(rows: Sequence[Mapping[str, Any]]) -> list[_Waiting]:
    names = ("lane", "priority", "handler", "known", "active", "frozen")
    causes = [UnservedCause(*(row[name] for name in names))._replace(requires=tuple(row["requires"])) for row in rows]
    return [_Waiting(cause, row["jobs"], row["oldest_us"]) for cause, row in zip(causes, rows, strict=True)]


def _runnable(waiting: Sequence[_Waiting], now_us: int) -> Finding:
    """Whether each due job in the master has an agent that can run it."""
    # Jobs that no bucket serves are another finding, unless no agent has their handler either.
    without = [each for each in waiting if each.cause.active or not each.cause.known]
    if not without:
        return Finding("jobs.handlers", OK, "every due job in the master has an agent with its handler")
    detail = [
        f"{each.cause.reason} ({_at_least(each.jobs)} job(s) wait in {each.cause.group}, the oldest was due "
        f"{rounded_duration((now_us - each.oldest_us) / 1_000_000)} ago)"
        for each in without[:_NAMES_MAX]
    ]
    detail += [f"and {len(without) - _NAMES_MAX} more"] if len(without) > _NAMES_MAX else []
    return Finding("jobs.handlers", FAIL, "; ".join(detail), without[0].cause.remedy)


def _schedules(rows: Sequence[Mapping[str, Any]]) -> Finding:
    """Whether each schedule that fires has an agent with its handler, and a leader that decides its fires."""
    if unserved := [row for row in rows if not row["served"]]:
        detail = [f"{row['name']} runs {row['handler']!r}" for row in unserved[:_NAMES_MAX]]
        detail += [f"and {len(unserved) - _NAMES_MAX} more"] if len(unserved) > _NAMES_MAX else []
        fix = "start an agent with this handler, or jobmaster schedule remove NAME"
        return Finding("schedules", FAIL, f"no living agent has the handler: {'; '.join(detail)}", fix)
    if homeless := [row for row in rows if not row["lane_served"]]:
        lanes = [f"{row['name']} (lane {row['lane']!r})" for row in homeless[:_NAMES_MAX]]
        lanes += [f"and {len(homeless) - _NAMES_MAX} more"] if len(homeless) > _NAMES_MAX else []
        fix = "add the lane to an agent's lanes in the configuration, or give the schedule another one"
        return Finding("schedules", FAIL, f"no agent serves the lane: {'; '.join(lanes)}", fix)
    if late := [row for row in rows if row["late_seconds"] > DECISION_LATE_SECONDS]:
        worst = max(late, key=lambda row: float(row["late_seconds"]))
        detail_late = f"{len(late)} wait for a decision, {worst['name']} for {rounded_duration(worst['late_seconds'])}"
        return Finding("schedules", WARN, detail_late, "is there a leader? See agents.leader and the leader's log")
    if hides := [str(row["name"]) for row in rows if row["hides"]]:
        names = ", ".join(hides[:_NAMES_MAX]) + (
            f" and {len(hides) - _NAMES_MAX} more" if len(hides) > _NAMES_MAX else ""
        )
        return Finding(
            "schedules", WARN, f"agents declare {names}, but the definition by the API stands",
            "take it out of the code, or jobmaster schedule remove NAME and restart an agent that declares it",
        )  # fmt: skip
    return Finding("schedules", OK, f"{len(rows)} schedule(s) fire, each with an agent that has its handler")


def _at_least(jobs: int) -> str:
    return f"at least {jobs}" if jobs >= LOOK_JOBS else str(jobs)


def _served(buckets: Sequence[Mapping[str, Any]], held: Sequence[Mapping[str, Any]]) -> Finding:
    states: dict[tuple[str, int], set[str]] = {}
    for bucket in buckets:
        states.setdefault((bucket["lane"], bucket["priority"]), set()).add(bucket["state"])
    without = [row for row in held if "ACTIVE" not in states.get((row["lane"], row["priority"]), ())]
    frozen = [row for row in without if "FROZEN" in states.get((row["lane"], row["priority"]), ())]
    unserved = [row for row in without if row not in frozen]
    detail = [f"no bucket serves {_groups(unserved)}"] if unserved else []
    detail += [f"every bucket of {_groups(frozen)} is frozen"] if frozen else []
    if detail:
        fixes = ["configure buckets for it on some agent"] if unserved else []
        fixes += ["jobmaster bucket unfreeze --all (or BUCKET, or --lane)"] if frozen else []
        return Finding("jobs.served", FAIL, "; ".join(detail), "; ".join(fixes))
    return Finding("jobs.served", OK, f"{len(held)} lane(s) and priorities with held jobs, all served")


def _groups(rows: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(f"{row['lane']}/{Priority(row['priority']).label} ({row['held']} held)" for row in rows)


async def _paused(
    settings: ClusterSettings, reader: Reader, found: PausesInForce, now_us: int, schedules: Sequence[Mapping[str, Any]]
) -> Finding:
    """What operators have paused, and whether every agent obeys."""
    name, paused = "pauses", [each for each in found.pauses if each.kind is not PauseKind.BREAKER]
    late = [row["name"] for row in await reader.rows(sql(FOLLOWERS), found.version) if not row["obeys"]]
    if late and 0 < found.version < now_us - settings.leases.lease_seconds * 1e6:
        detail = f"{len(late)} agent(s) have not confirmed the last pause or resume: {_some(late)}"
        fix = "an agent confirms within a renewal; one of a version without pauses starts what is paused: replace it"
        return Finding(name, FAIL if paused else WARN, detail, fix)
    also = [schedules_paused(len(schedules))] if schedules else []
    if schedules and not paused:
        return Finding(name, WARN, also[0], f"when it is time: jobmaster resume schedule {schedules[0]['name']}")
    if not paused:
        return Finding(name, OK, "nothing is paused")
    more = f" and {len(paused) - _NAMES_MAX} more" if len(paused) > _NAMES_MAX else ""
    detail = "; ".join([explained(paused[:_NAMES_MAX]) + more, *also])
    return Finding(name, WARN, detail, f"when it is time: {remedy(paused[0])}")


def _breakers(rows: Sequence[Mapping[str, Any]], now_us: int) -> Finding:
    """Circuit breakers that hold jobs back."""
    name, held = "breakers", [row for row in rows if row["state"] != BreakerState.CLOSED]
    if not held:
        return Finding(name, OK, f"{len(rows)} circuit breaker(s), none is open" if rows else "no handler has one")
    said = []
    for row in held[:_NAMES_MAX]:
        since = rounded_duration((now_us - row["changed_us"]) / 1e6)
        if row["state"] == BreakerState.HALF_OPEN:
            now = f"{len(row['trial_jobs'])} job(s) try the resource, {row['succeeded']} of {row['half_open']} have succeeded"
        elif row["until_us"] is None:
            now = f"until it is closed: {row['reason']} ({row['actor']})"
        else:
            left = rounded_duration(max(row["until_us"] - now_us, 0) / 1e6)
            now = f"half-open in {left}: {row['reason']} ({row['actor']})"
        said.append(f"{row['name']} is {row['state']} for {since}, {now}")
    more = f"; and {len(held) - _NAMES_MAX} more" if len(held) > _NAMES_MAX else ""
    fix = f"mend the resource; its jobs wait and use up no attempt. By hand: jobmaster breaker close {held[0]['name']}"
    return Finding(name, WARN, "; ".join(said) + more, fix)


def _overdue(held: Sequence[Mapping[str, Any]], paused: Sequence[Pause]) -> Finding:
    """Overdue jobs that an agent can run. Jobs that no agent can run are another finding."""
    overdue = sum(row["overdue"] - row["stranded"] for row in held)
    if overdue:
        detail = f"{overdue} held job(s) are overdue by more than {OVERDUE_SECONDS:g} s"
        fix = "more agents or slots, or wait until the backlog is done"
        if paused:
            fix = f"jobs that are paused wait on purpose (pauses); for the others {fix}"
        return Finding("jobs.overdue", WARN, detail, fix)
    stranded = sum(row["stranded"] for row in held)
    apart = f", but for {stranded} that no agent can take (jobs.handlers, jobs.served)" if stranded else ""
    return Finding("jobs.overdue", OK, f"{sum(row['held'] for row in held)} held, none overdue{apart}")


def _settled(settings: ClusterSettings, buckets: Sequence[Mapping[str, Any]]) -> Finding:
    limit = settings.leases.lease_seconds * 2 + settings.leases.grace_seconds
    stuck = [b for b in buckets if b["state"] in ("LOST", "DRAINING") and b["unchanged_seconds"] > limit]
    if stuck:
        detail = ", ".join(
            f"{b['id']} is {b['state']} for {rounded_duration(b['unchanged_seconds'])}" for b in stuck[:5]
        )
        return Finding(
            "buckets.rescued", FAIL, f"{len(stuck)} bucket(s): {detail}", "is an agent alive that reaches their store?"
        )
    frozen = [b for b in buckets if b["state"] == "FROZEN"]
    if frozen:
        detail = f"{len(frozen)} bucket(s) are FROZEN by an operator"
        return Finding("buckets.rescued", WARN, detail, "jobmaster bucket unfreeze --all (or BUCKET, or --lane)")
    return Finding("buckets.rescued", OK, f"{len(buckets)} buckets, none waits for rescue")


async def _in_flight(settings: ClusterSettings, reader: Reader) -> Finding:
    from jobmaster.audit.invariants import statement

    quiet = settings.leases.lease_seconds * 2 + settings.leases.grace_seconds
    orphans = await reader.rows(statement("i8_nothing_orphaned"), 1, quiet)
    if orphans:
        detail = f"{orphans[0]['total']} job(s) in flight without a live agent, such as {orphans[0]['subject']}"
        return Finding("jobs.in_flight", FAIL, detail, "is an agent alive? The leader returns them within a minute")
    return Finding("jobs.in_flight", OK, "nothing in flight without a live agent")


async def quarantine_finding(reader: Reader) -> Finding:
    """Whether the quarantine has entries, which an operator should examine."""
    there = (await reader.report("quarantine"))[0]
    if there["kept"]:
        detail = f"{there['kept']} entries are in quarantine, the newest of job {there['job_id']}: {there['reason']}"
        fix = "look at the master's table quarantine (docs/operations.md), send again what is wanted, delete the line"
        return Finding("quarantine", WARN, detail, fix)
    return Finding("quarantine", OK, "nothing is in quarantine")


async def loss_finding(reader: Reader) -> Finding:
    """Whether a store has lost a bucket of a living owner, and jobs in it."""
    name, days = "losses", LOSSES_DAYS
    losses = await reader.report("losses", days * 86_400.0, LOSSES_MAX)
    at_risk, salvaged = sum(row["at_risk"] for row in losses), sum(row["salvaged"] for row in losses)
    if at_risk:
        hit = [row for row in losses if row["at_risk"]]
        last = hit[0]
        detail = (
            f"{at_risk} job(s) without a row lay in {len(hit)} bucket(s) that their stores lost in {days} days "
            f"({salvaged} more were saved); the latest: {last['at_risk']} in bucket {last['bucket_id']} of store "
            f"{last['store']}, {rounded_duration(last['ago_seconds'])} ago: {last['reason']}"
        )
        fix = "submit again what is missing; find out why the store was emptied or replaced by an older copy"
        return Finding(name, WARN, detail, fix)
    if losses:
        return Finding(name, OK, f"stores lost {len(losses)} bucket(s) in {days} days; all {salvaged} jobs were saved")
    return Finding(name, OK, f"no store has lost a job in {days} days")


# ---------------------------------------------------------------- stores


async def store_findings(
    settings: ClusterSettings, reader: Reader, opened: AsyncExitStack
) -> tuple[list[Finding], dict[str, AgentStore]]:
    """Findings of all stores, and the stores that answer (for the audit).

    The stores are examined at once: one after the other, a few that do not answer would take the time-outs of all.

    Args:
        opened: closes the stores, also those of an examination that is cancelled.
    """
    known = {row["name"]: row["generation"].bytes for row in await reader.report("stores")}
    uid = (await reader.report("server"))[0]["cluster_uid"].bytes
    buckets = await reader.report("buckets", False)
    urls, stores = addresses(settings).urls, {}

    async def examined(name: str, url: str) -> list[Finding]:
        found: list[Finding] = []
        try:
            store = AgentStore(cluster=settings.cluster, name=name, url=url, settings=settings.stores[name])
            opened.push_async_callback(store.close)
            await store.open()
            stores[name] = store
            record = store_record(name, await store.health(), uid, known.get(name), await store.nodes())
            if record["state"] == "ok":
                await store.depths([uid])  # any id: it fails where the functions are not loaded
                found += await _elsewhere(name, store, buckets)
        except JobMasterError as error:
            return [*found, Finding(f"store.{name}", FAIL, error.message, error.hint or "")]
        return [*found, store_finding(name, record, settings.stores[name].durability)]

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(examined(name, url)) for name, url in urls.items()]
    findings = [finding for task in tasks for finding in task.result()]
    for name in sorted(set(known) - set(urls)):
        detail = f"store {name} is registered in the master and not in the configuration"
        findings.append(
            Finding(f"store.{name}", WARN, detail, "its buckets can only be rescued by agents that name it")
        )
    return findings, stores


async def _elsewhere(name: str, store: AgentStore, buckets: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """Buckets of living agents that name this store and are not in it."""
    working = [
        row["id"].bytes
        for row in buckets
        if (row["store"], row["state"]) == (name, "ACTIVE")
        and row["owner_leased"]
        and row["unchanged_seconds"] > _SETTLED_SECONDS
    ]
    missing = sum(depth is None for depth in await store.depths(working)) if working else 0
    if not missing:
        return []
    detail = f"{missing} of {len(working)} buckets of living agents are not in this store"
    fix = "do all agents and this configuration have the same URL of it, database number included?"
    return [Finding(f"store.{name}.buckets", FAIL, detail, fix)]


def store_finding(name: str, record: Mapping[str, Any], durability: StoreDurability) -> Finding:
    """What one store is and keeps. ``durability``: what the configuration requires of its log."""
    append_only = "on" if record["append_only"] else "off"
    detail = f"{record['server']}, eviction {record['eviction_policy']}, append-only {append_only}"
    if record["append_only"]:
        detail += f" (fsync {record['append_fsync']})"
    if record["fails_over"]:
        detail += ", fails over to a replica"
    if record["nodes"]:
        detail += f"; nodes: {', '.join(node['name'] for node in record['nodes'])}"
    if record["state"] != "ok":
        fix = "jobmaster store init" if record["state"] == "not initialised" else "see jobmaster store check -o json"
        status = WARN if record["state"] == "not initialised" else FAIL
        return Finding(f"store.{name}", status, f"{detail}: {record['state']}", fix)
    if alone := [node["name"] for node in record["nodes"] if not node["replicas"]]:
        fix = f"add a replica of {', '.join(alone)}: without one, a node that is lost takes its buckets along"
        return Finding(f"store.{name}", WARN, detail, fix)
    if record["fails_over"] and not record["awaits_replica"]:
        fix = (
            "set min-replicas-to-write 1 and min-replicas-max-lag 2 on its servers: a primary that was cut off goes on "
            "taking jobs, which are gone when it comes back as a replica"
        )
        return Finding(f"store.{name}", WARN, detail, fix)
    if not record["append_only"] and durability is StoreDurability.VOLATILE_OK:
        return Finding(f"store.{name}", OK, f"{detail}, accepted by stores.{name}.durability")
    if not record["append_only"]:
        fix = "set appendonly yes: a restart of the store would lose jobs without a row in the master"
        return Finding(f"store.{name}", WARN, detail, fix)
    return Finding(f"store.{name}", OK, detail)
