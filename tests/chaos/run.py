"""One run: a cluster, a schedule of faults, the drain, the checks."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import Any

import msgspec

from benchmarks.support.report import commit, machine
from tests.chaos.checks import collect
from tests.chaos.checks.checker import EXCUSE_SECONDS, Findings, check, rescue_seconds
from tests.chaos.checks.history import History
from tests.chaos.cluster.chaos_cluster import AGENTS, STOP_SECONDS, ChaosCluster, RunForm, RunOptions
from tests.chaos.cluster.servers import Servers
from tests.chaos.faults.catalogue import FIRST_LASTING, KINDS, FaultKind, available
from tests.chaos.faults.injector import FaultInjector
from tests.chaos.faults.schedule import Planned, plan, plan_long
from tests.chaos.faults.targets import LEASE_SECONDS, Targets
from tests.chaos.processes.witness import read

SEEN = (
    "agent_fenced", "agent_certified_dead", "bucket_taken", "bucket_drained", "bucket_forgotten", "store_emptied",
    "outcomes_kept", "loop_stalled", "crash_loop", "child_exited", "rows_without_memory", "rows_released",
)  # fmt: skip
KILLS = ("child_kill", "supervisor_kill", "agent_kill") * 3 + ("producer_kill",)
_SPARE_ROUNDS = 1.4
"""Some find no process to kill, because all are being started again."""
_ROUND_SECONDS = (0.3, 1.7)
_BETWEEN_RESTARTS_SECONDS = 1.0


def run(
    options: RunOptions,
    log_line: Any,
    make: Callable[[RunOptions, ExitStack, Any], ChaosCluster] = ChaosCluster,
    catalogue: Mapping[str, FaultKind] = KINDS,
) -> dict[str, Any]:
    """The report of one run. The directory stays when it is not clean."""
    with ExitStack() as stack:
        cluster = make(options, stack, log_line)
        try:
            return play(options, cluster, log_line, catalogue)
        except Exception:
            cluster.preserve()
            log_line(f"it broke off; everything is kept in {cluster.root}")
            raise


def is_clean(report: Mapping[str, Any]) -> bool:
    """No promise was broken, and nothing was left when the time to drain was over."""
    return not report["violations"] and not report["left_after_drain"]


def violations_of(findings: Findings, invariants: Mapping[str, int]) -> dict[str, Any]:
    """What the checker found, and the invariants that do not hold, by name."""
    return dict(findings.violations) | {number: count for number, count in invariants.items() if count}


def play(
    options: RunOptions, cluster: ChaosCluster, log_line: Any, catalogue: Mapping[str, FaultKind] = KINDS
) -> dict[str, Any]:
    """The report of one run on a cluster that is set up."""
    targets = cluster.start()
    kinds, impossible = available(targets, catalogue)
    schedule = planned(options, kinds, catalogue)
    seconds = schedule[-1].at + 3.0 if options.form is RunForm.KILLS else options.seconds
    history = History()
    if options.long_faults:
        # What only a store knows is as old as the longest absence of the master.
        history.excuse_seconds = EXCUSE_SECONDS + max(lasting(kinds).values(), default=0.0)
    injector = FaultInjector(
        targets,
        lambda: history.stores.update(collect.stores_of_buckets(cluster.servers, cluster.schema)),
        log_line,
        catalogue,
    )
    log_line(f"{len(schedule)} faults in {seconds:.0f} s at {options.rate:g} jobs/s; logs in {cluster.root}")
    unclean = restart_all(cluster, options.rounds, log_line) if options.form is RunForm.ROLLING else []
    most = options.rounds if options.form is RunForm.KILLS else None
    injector.play(schedule, 3.0 if options.form is RunForm.ROLLING else seconds, most)
    log_line("everything is healed; the producers stop, the rest drains")
    cluster.stop_producers()
    drain_seconds, left = cluster.drain(lambda: None)
    history.unrescued = collect.unrescued(cluster.servers, cluster.schema)
    exits = cluster.stop_agents()
    log_line(f"drained in {drain_seconds:.1f} s, left: {left or 'nothing'}; agents left with {exits}")
    report = examined(cluster, injector, history, targets, log_line)
    if options.form is RunForm.ROLLING:
        unclean += [f"{name}: {code}" for name, code in exits.items() if code]
        report |= {"restarts": options.rounds, **burnt(cluster, unclean)}
        report["violations"] |= {
            name: report[name] for name in ("rescues", "attempts_burnt", "buckets_lost") if report[name]
        }
        report["violations"] |= {"unclean_exits": unclean} if unclean else {}
    report |= {
        "form": options.form.value,
        "stores": options.stores.value,
        "drain_seconds": round(drain_seconds, 1),
        "left_after_drain": left,
        "agent_exit_codes": exits,
        "seed": options.seed,
        "long_faults": options.long_faults,
        "schedule": [[one.kind, one.at, one.seconds] for one in schedule] if options.form is RunForm.MIXED else [],
        "unavailable": impossible,
    }
    collect.write(cluster.root / "report.json", report)
    if options.keep or not is_clean(report):
        cluster.preserve()
        report["kept"] = str(cluster.root)
    return report


def planned(options: RunOptions, kinds: list[str], catalogue: Mapping[str, FaultKind] = KINDS) -> list[Planned]:
    """The faults of the run, by its form and seed."""
    if options.form is RunForm.ROLLING:
        return []
    if options.form is RunForm.KILLS:
        rng, at, found = random.Random(options.seed), 2.0, []
        for _ in range(int(options.rounds * _SPARE_ROUNDS)):
            at += rng.uniform(*_ROUND_SECONDS)
            found.append(Planned(rng.choice(KILLS), round(at, 3), 0.0, rng.getrandbits(32)))
        return found
    wanted = [kind for kind in kinds if not options.kinds or kind in options.kinds]
    found = plan(
        options.seed, options.seconds - 2.0, wanted, {name: kind.longest_seconds for name, kind in catalogue.items()}
    )
    if options.long_faults:
        found += plan_long(options.seed, options.seconds - 2.0, lasting(wanted), FIRST_LASTING)
    return sorted(found, key=lambda one: one.at)


def lasting(kinds: Iterable[str]) -> dict[str, float]:
    """Kinds that can last, and how long they do among the long faults."""
    return {kind: KINDS[kind].lasting_seconds for kind in kinds if KINDS[kind].lasting_seconds}


def restart_all(cluster: ChaosCluster, rounds: int, log_line: Any) -> list[str]:
    """One agent after the other leaves in order and comes back; exits that were not clean."""
    names, unclean = list(AGENTS), []
    for number in range(rounds):
        name = names[number % len(names)]
        member = cluster.fleet.members[name]
        started = member.count("agent_started")
        member.terminate()
        code = member.wait(STOP_SECONDS)
        if code != 0:
            unclean.append(f"{name}: {code}")
        cluster.fleet.again(name)
        cluster.fleet.wait_started(name, started + 1)
        log_line(f"restart {number + 1} of {rounds}: {name} left with {code}")
        time.sleep(_BETWEEN_RESTARTS_SECONDS)
    return unclean


def burnt(cluster: ChaosCluster, unclean: list[str]) -> dict[str, Any]:
    """What graceful exits must not cost."""
    sql = cluster.servers.sql
    rescues = sql("SELECT coalesce(sum(rescues), 0)::int FROM job", schema=cluster.schema)[0][0]
    # A flaky job fails once by itself.
    attempts = sql(
        "SELECT coalesce(sum(attempt - CASE handler WHEN 'chaos.flaky' THEN 2 ELSE 1 END), 0)::int FROM job"
        " WHERE attempt > CASE handler WHEN 'chaos.flaky' THEN 2 ELSE 1 END",
        schema=cluster.schema,
    )[0][0]
    lost = sql("SELECT count(*) FROM bucket_event WHERE to_state = 'LOST'", schema=cluster.schema)[0][0]
    return {"rescues": rescues, "attempts_burnt": attempts, "buckets_lost": lost, "unclean_exits": unclean}


def examined(
    cluster: ChaosCluster, injector: FaultInjector, history: History, targets: Targets, log_line: Any
) -> dict[str, Any]:
    """Check the run; the whole report."""
    log_line("reading the witnesses and the master")
    history.witnessed(read(cluster.witness))
    collect.read_master(cluster.servers, cluster.schema, history)
    collect.read_flow(cluster.servers, cluster.schema, history)
    history.faults = injector.faults
    history.woken = targets.woken
    findings: Findings = check(history)
    excused = findings.excused_jobs
    audited = collect.invariants(cluster.direct_settings(), history.acks.keys() - excused, LEASE_SECONDS * 2)
    acks = sorted(ack.at for ack in history.acks.values())
    seconds = round(acks[-1] - acks[0], 1) if acks else 0.0
    found = msgspec.to_builtins(findings)
    found.pop("excused_jobs")
    return {
        **found,
        "jobs_per_second": round(len(acks) / max(seconds, 1.0), 1),
        "load_seconds": seconds,
        "faults": dict(sorted(injector.counts.items())),
        "rescue_seconds": rescue_seconds(history),
        "invariants": audited["violations"],
        "evidence": audited["evidence"],
        "violations": violations_of(findings, audited["violations"]),
        "events": collect.events(cluster.fleet, SEEN),
        "proxy": cluster.proxy.counts(),
        "versions": versions(cluster.servers),
        "machine": machine(),
    }


def versions(servers: Servers) -> dict[str, str]:
    """What was run."""
    found = {name: str(role.server.program) for name, role in servers.roles.items()}
    programs = {name: text.split(" (")[0] for name, text in found.items()}
    return {"commit": commit(), "master": programs["master"], "store": programs["synced"]}


def interruptible() -> None:
    """SIGTERM is an exception, so that everything is torn down."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
