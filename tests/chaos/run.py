"""One run: a scene, a schedule of faults, the drain, the judgement."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import Any

import msgspec

from benchmarks.report import commit, machine
from tests.chaos import collect
from tests.chaos.checker import EXCUSE_SECONDS, Verdict, check, rescue_seconds
from tests.chaos.conductor import Conductor
from tests.chaos.faults import FIRST_LASTING, KINDS, available
from tests.chaos.history import History
from tests.chaos.hit import LEASE_SECONDS, Stage
from tests.chaos.scene import AGENTS, STOP_SECONDS, Course, Form, Scene
from tests.chaos.schedule import Planned, plan, plan_long
from tests.chaos.servers import Servers
from tests.chaos.witness import read

SEEN = (
    "agent_fenced", "agent_certified_dead", "bucket_taken", "bucket_drained", "bucket_forgotten", "store_emptied",
    "outcomes_spilled", "loop_stalled", "crash_loop", "child_exited", "rows_without_memory", "rows_released",
)  # fmt: skip
KILLS = ("child_kill", "supervisor_kill", "agent_kill") * 3 + ("producer_kill",)
_SPARE_ROUNDS = 1.4
"""Some find nobody to kill, because everybody is being started again."""
_ROUND_SECONDS = (0.3, 1.7)
_BETWEEN_RESTARTS_SECONDS = 1.0


def run(course: Course, tell: Any) -> dict[str, Any]:
    """The report of one run. The directory stays when it is not clean."""
    with ExitStack() as stack:
        scene = Scene(course, stack, tell)
        try:
            return play(course, scene, tell)
        except Exception:
            scene.preserve()
            tell(f"it broke off; everything is kept in {scene.root}")
            raise


def is_clean(report: Mapping[str, Any]) -> bool:
    """No promise was broken, and nothing was left when the time to drain was over."""
    return not report["violations"] and not report["left_after_drain"]


def violations_of(verdict: Verdict, invariants: Mapping[str, int]) -> dict[str, Any]:
    """What the checker found, and the invariants that do not hold, by name."""
    return dict(verdict.violations) | {number: count for number, count in invariants.items() if count}


def play(course: Course, scene: Scene, tell: Any) -> dict[str, Any]:
    """The report of one run on a scene that is set up."""
    stage = scene.start()
    kinds, impossible = available(stage)
    schedule = planned(course, kinds)
    seconds = schedule[-1].at + 3.0 if course.form is Form.KILLS else course.seconds
    history = History()
    if course.long_faults:
        # What only a store knows is as old as the longest absence of the master.
        history.excuse_seconds = EXCUSE_SECONDS + max(lasting(kinds).values(), default=0.0)
    conductor = Conductor(
        stage, lambda: history.stores.update(collect.stores_of_buckets(scene.servers, scene.schema)), tell
    )
    tell(f"{len(schedule)} faults in {seconds:.0f} s at {course.rate:g} jobs/s; logs in {scene.root}")
    unclean = restart_all(scene, course.rounds, tell) if course.form is Form.ROLLING else []
    most = course.rounds if course.form is Form.KILLS else None
    conductor.play(schedule, 3.0 if course.form is Form.ROLLING else seconds, most)
    tell("everything is healed; the producers stop, the rest drains")
    scene.stop_producers()
    drain_seconds, left = scene.drain(lambda: None)
    exits = scene.stop_agents()
    tell(f"drained in {drain_seconds:.1f} s, left: {left or 'nothing'}; agents left with {exits}")
    report = judge(scene, conductor, history, stage, tell)
    if course.form is Form.ROLLING:
        unclean += [f"{name}: {code}" for name, code in exits.items() if code]
        report |= {"restarts": course.rounds, **burnt(scene, unclean)}
        report["violations"] |= {
            name: report[name] for name in ("rescues", "attempts_burnt", "buckets_lost") if report[name]
        }
        report["violations"] |= {"unclean_exits": unclean} if unclean else {}
    report |= {
        "form": course.form.value,
        "drain_seconds": round(drain_seconds, 1),
        "left_after_drain": left,
        "agent_exit_codes": exits,
        "seed": course.seed,
        "long_faults": course.long_faults,
        "schedule": [[one.kind, one.at, one.seconds] for one in schedule] if course.form is Form.MIXED else [],
        "unavailable": impossible,
    }
    collect.write(scene.root / "report.json", report)
    if course.keep or not is_clean(report):
        scene.preserve()
        report["kept"] = str(scene.root)
    return report


def planned(course: Course, kinds: list[str]) -> list[Planned]:
    """The faults of the run, by its form and seed."""
    if course.form is Form.ROLLING:
        return []
    if course.form is Form.KILLS:
        rng, at, found = random.Random(course.seed), 2.0, []
        for _ in range(int(course.rounds * _SPARE_ROUNDS)):
            at += rng.uniform(*_ROUND_SECONDS)
            found.append(Planned(rng.choice(KILLS), round(at, 3), 0.0, rng.getrandbits(32)))
        return found
    wanted = [kind for kind in kinds if not course.kinds or kind in course.kinds]
    found = plan(
        course.seed, course.seconds - 2.0, wanted, {name: kind.longest_seconds for name, kind in KINDS.items()}
    )
    if course.long_faults:
        found += plan_long(course.seed, course.seconds - 2.0, lasting(wanted), FIRST_LASTING)
    return sorted(found, key=lambda one: one.at)


def lasting(kinds: Iterable[str]) -> dict[str, float]:
    """Kinds that can last, and how long they do among the long faults."""
    return {kind: KINDS[kind].lasting_seconds for kind in kinds if KINDS[kind].lasting_seconds}


def restart_all(scene: Scene, rounds: int, tell: Any) -> list[str]:
    """One agent after the other leaves in order and comes back; exits that were not clean."""
    names, unclean = list(AGENTS), []
    for number in range(rounds):
        name = names[number % len(names)]
        member = scene.fleet.members[name]
        started = member.count("agent_started")
        member.terminate()
        code = member.wait(STOP_SECONDS)
        if code != 0:
            unclean.append(f"{name}: {code}")
        scene.fleet.again(name)
        scene.fleet.wait_started(name, started + 1)
        tell(f"restart {number + 1} of {rounds}: {name} left with {code}")
        time.sleep(_BETWEEN_RESTARTS_SECONDS)
    return unclean


def burnt(scene: Scene, unclean: list[str]) -> dict[str, Any]:
    """What graceful exits must not cost."""
    sql = scene.servers.sql
    rescues = sql("SELECT coalesce(sum(rescues), 0)::int FROM job", schema=scene.schema)[0][0]
    # A flaky job fails once by itself.
    attempts = sql(
        "SELECT coalesce(sum(attempt - CASE handler WHEN 'chaos.flaky' THEN 2 ELSE 1 END), 0)::int FROM job"
        " WHERE attempt > CASE handler WHEN 'chaos.flaky' THEN 2 ELSE 1 END",
        schema=scene.schema,
    )[0][0]
    lost = sql("SELECT count(*) FROM bucket_event WHERE to_state = 'LOST'", schema=scene.schema)[0][0]
    return {"rescues": rescues, "attempts_burnt": attempts, "buckets_lost": lost, "unclean_exits": unclean}


def judge(scene: Scene, conductor: Conductor, history: History, stage: Stage, tell: Any) -> dict[str, Any]:
    """Everything that was found, as one object."""
    tell("reading the witnesses and the master")
    history.witnessed(read(scene.witness))
    collect.read_master(scene.servers, scene.schema, history)
    history.strikes = conductor.strikes
    history.woken = stage.woken
    verdict: Verdict = check(history)
    excused = verdict.excused_jobs
    audited = collect.invariants(scene.direct_settings(), history.acks.keys() - excused, LEASE_SECONDS * 2)
    acks = sorted(ack.at for ack in history.acks.values())
    seconds = round(acks[-1] - acks[0], 1) if acks else 0.0
    found = msgspec.to_builtins(verdict)
    found.pop("excused_jobs")
    return {
        **found,
        "jobs_per_second": round(len(acks) / max(seconds, 1.0), 1),
        "load_seconds": seconds,
        "faults": dict(sorted(conductor.counts.items())),
        "rescue_seconds": rescue_seconds(history),
        "invariants": audited["violations"],
        "evidence": audited["evidence"],
        "violations": violations_of(verdict, audited["violations"]),
        "events": collect.events(scene.fleet, SEEN),
        "proxy": scene.proxy.counts(),
        "versions": versions(scene.servers),
        "machine": machine(),
    }


def versions(servers: Servers) -> dict[str, str]:
    """What was run."""
    found = {name: str(place.server.program) for name, place in servers.places.items()}
    programs = {name: text.split(" (")[0] for name, text in found.items()}
    return {"commit": commit(), "master": programs["master"], "store": programs["default"]}


def interruptible() -> None:
    """SIGTERM is an exception, so that everything is torn down."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
