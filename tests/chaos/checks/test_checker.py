"""The checker on histories that are known to be good or bad: every kind of violation is flagged, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.chaos import page
from tests.chaos.__main__ import main
from tests.chaos.checks.checker import (
    AWAKE_SECONDS,
    EXCUSE_SECONDS,
    QUIET_SECONDS,
    REPLY_SECONDS,
    UNBEGUN_MAX,
    check,
    rescue_seconds,
)
from tests.chaos.checks.history import Ack, Cancel, Death, Evacuation, FaultRecord, History, Row, Run
from tests.chaos.faults.schedule import plan, plan_long
from tests.chaos.processes.witness import ANYWHERE, Phase, WitnessLine, WitnessWriter, read
from tests.chaos.run import violations_of

JOBS = [f"{number:032x}" for number in range(10)]
BUCKET = "b" * 32
FLUSH = FaultRecord("store_flushed", 1000.0, 1001.0, frozenset({"store", "store_fsync"}), "default")


def good() -> History:
    """Ten jobs that were acknowledged, ran once, and succeeded."""
    history = History(attempted=[(0, 9)], stores={BUCKET: "default"})
    for value, job in enumerate(JOBS):
        history.acks[job] = Ack("store", 990.0 + value, BUCKET)
        history.runs[job] = [Run(1, 991.0 + value, value, 1, "chaos.quick")]
        history.rows[job] = Row("SUCCEEDED", 1, value, 1, 1)
    return history


def ended(
    monkeypatch: pytest.MonkeyPatch, history: History, invariants: dict[str, int], left: dict[str, int]
) -> Result:
    """The command, over a run with this history."""
    report = {"violations": violations_of(check(history), invariants), "left_after_drain": left, "kept": "somewhere"}
    monkeypatch.setattr("tests.chaos.__main__.run", lambda options, log_line: report)
    monkeypatch.setattr("tests.chaos.__main__.interruptible", lambda: None)
    return CliRunner().invoke(main, ["--json"])


def test_a_clean_run_ends_with_0(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ended(monkeypatch, good(), {"I1": 0, "I5": 0}, {}).exit_code == 0


@pytest.mark.parametrize("wrong", ["checker", "invariant", "left"])
def test_a_violation_ends_the_command_with_1_and_is_named(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    history = good()
    if wrong == "checker":
        lose(history)
    left = {"HELD": 2} if wrong == "left" else {}
    result = ended(monkeypatch, history, {"I1": 0, "I5": int(wrong == "invariant")}, left)
    assert result.exit_code == 1
    said = {"checker": "'lost': 1", "invariant": "'I5': 1", "left": "'HELD': 2"}[wrong]
    assert said in result.stderr


def test_a_good_history_has_no_violation_and_every_job_is_ok() -> None:
    findings = check(good())
    assert findings.violations == {}
    assert (findings.attempts, findings.acknowledged, findings.ok, findings.reexecuted) == (10, 10, 10, 0)


def lose(history: History) -> None:
    del history.rows[JOBS[3]]


def leave_unfinished(history: History) -> None:
    history.rows[JOBS[3]] = history.rows[JOBS[3]]._replace(state="HELD", recorded_token=0)


def invent_row(history: History) -> None:
    history.rows["f" * 32] = Row("SUCCEEDED", 1, 77, 1, 1)
    history.runs["f" * 32] = [Run(1, 999.0, 77, 1, "chaos.quick")]


def invent_run(history: History) -> None:
    history.runs["f" * 32] = [Run(1, 999.0, 10, 1, "chaos.quick")]


def conclude_twice(history: History) -> None:
    history.conclusions[JOBS[3]] = 2


def overwrite(history: History) -> None:
    history.overwritten = 1


def change_what_was_read(history: History) -> None:
    history.observed[JOBS[3]] = 2


def record_stale(history: History) -> None:
    history.rows[JOBS[3]] = history.rows[JOBS[3]]._replace(token=3)


def succeed_without_running(history: History) -> None:
    del history.runs[JOBS[3]]


def start_fenced_twice(history: History) -> None:
    run = history.runs[JOBS[3]][0]._replace(handler="chaos.fenced")
    history.runs[JOBS[3]] = [run, run._replace(at=run.at + 1)]


def start_after_death(history: History) -> None:
    history.deaths = [Death(1, 991.0 + 3 - AWAKE_SECONDS - 0.1)]
    for job in JOBS:
        history.runs[job] = [run._replace(pid=1 if job == JOBS[3] else 2) for run in history.runs[job]]


def start_once_twice(history: History) -> None:
    run = history.runs[JOBS[3]][0]._replace(handler="chaos.once")
    history.runs[JOBS[3]] = [run, run._replace(at=run.at + 1, token=2)]


def abandon_unbegun(history: History) -> None:
    history.rows[JOBS[3]] = Row("FAILED", 1, 3, 0, 1, "abandoned")
    del history.runs[JOBS[3]]


def decide(history: History, handler: str, row: Row) -> None:
    history.runs[JOBS[3]] = [history.runs[JOBS[3]][0]._replace(handler=handler)]
    history.rows[JOBS[3]] = row


def succeed_in_spite_of_a_decision(history: History) -> None:
    decide(history, "chaos.failing", Row("SUCCEEDED", 1, 3, 1, 1))


def fail_for_another_reason(history: History) -> None:
    decide(history, "chaos.given_up", Row("FAILED", 1, 3, 0, 1, "error"))


def burn_an_attempt_by_a_snooze(history: History) -> None:
    decide(history, "chaos.put_off", Row("SUCCEEDED", 3, 3, 3, 3))


def start_after_cancelled_row(history: History) -> None:
    history.cancels[JOBS[3]] = Cancel(994.0 - AWAKE_SECONDS - 0.1, "CANCELLED", 993.5)


def start_after_cancel_request(history: History) -> None:
    history.cancels[JOBS[3]] = Cancel(994.0 - QUIET_SECONDS - 0.1, "ASSIGNED", 994.0)


@pytest.mark.parametrize(
    ("spoil", "name"),
    [
        (start_once_twice, "once_twice"),
        (abandon_unbegun, "abandoned_unbegun"),
        (succeed_in_spite_of_a_decision, "decided_otherwise"),
        (fail_for_another_reason, "decided_otherwise"),
        (burn_an_attempt_by_a_snooze, "decided_otherwise"),
        (start_after_cancelled_row, "cancel_forgotten"),
        (start_after_cancel_request, "cancel_forgotten"),
        (lose, "lost"),
        (leave_unfinished, "lost"),
        (invent_row, "unexpected"),
        (invent_run, "unexpected"),
        (conclude_twice, "duplicate_outcomes"),
        (overwrite, "duplicate_outcomes"),
        (change_what_was_read, "duplicate_outcomes"),
        (record_stale, "stale_recorded"),
        (succeed_without_running, "unwitnessed"),
        (start_fenced_twice, "fenced_twice"),
        (start_after_death, "started_dead"),
    ],
)
def test_every_known_bad_history_is_flagged_as_what_it_is(spoil: Callable[[History], None], name: str) -> None:
    history = good()
    spoil(history)
    findings = check(history)
    assert findings.violations == {name: 1}
    assert len(findings.examples[name]) == 1


def test_a_fault_excuses_a_few_jobs_that_were_cut_off_before_their_first_line() -> None:
    history = good()
    history.faults = [FaultRecord("child_kill", 993.0, 993.0, frozenset())]
    for job in JOBS[: UNBEGUN_MAX + 1]:
        history.rows[job] = Row("FAILED", 1, 3, 0, 1, "abandoned")
        del history.runs[job]
    assert check(history).violations == {"abandoned_unbegun": 1}


def test_a_cancel_request_that_a_fault_kept_from_the_owner_is_excused_and_counted() -> None:
    history = good()
    start_after_cancel_request(history)
    history.faults = [FaultRecord("network_cut", 992.0, 993.0, frozenset())]
    findings = check(history)
    assert findings.violations == {}
    assert findings.cancels == findings.cancelled_begun == 1


def test_a_failed_job_has_an_end_and_is_not_ok() -> None:
    history = good()
    history.rows[JOBS[3]] = Row("FAILED", 1, 3, 0, 1)
    findings = check(history)
    assert findings.violations == {}
    assert findings.ok == 9


@pytest.mark.parametrize(
    ("handler", "row"),
    [
        ("chaos.put_off", Row("SUCCEEDED", 3, 3, 3, 1)),
        ("chaos.failing", Row("FAILED", 2, 3, 0, 1, "failed")),
        ("chaos.given_up", Row("FAILED", 1, 3, 0, 1, "given_up")),
        ("chaos.given_up", Row("FAILED", 9, 3, 0, 0, "agent_lost")),
    ],
)
def test_a_job_that_ends_as_its_handler_decided_is_no_violation(handler: str, row: Row) -> None:
    history = good()
    decide(history, handler, row)
    assert check(history).violations == {}


# ---------------------------------------------------------------- what excuses a loss


def test_how_old_the_oldest_excused_job_was_is_reported() -> None:
    history = good()
    for job, at in ((JOBS[3], 999.0), (JOBS[4], 997.5)):
        history.acks[job] = Ack("store", at, BUCKET)
        history.rows.pop(job, None)
    history.faults = [FLUSH]
    findings = check(history)
    assert findings.excused == {FLUSH.kind: 2}
    assert findings.excused_seconds == {FLUSH.kind: FLUSH.at - 997.5}


def lost_with(fault: FaultRecord, ack: Ack) -> tuple[int, int]:
    history = good()
    lose(history)
    history.acks[JOBS[3]] = ack
    history.faults = [fault]
    findings = check(history)
    return findings.lost, sum(findings.excused.values())


@pytest.mark.parametrize(
    ("ack", "excused"),
    [
        (Ack("store", 999.0, BUCKET), True),
        (Ack("store_fsync", 999.0, BUCKET), True),
        (Ack("store", 999.0, ANYWHERE), True),
        (Ack("master", 999.0, BUCKET), False),
        (Ack("store", 999.0, "c" * 32), False),
        (Ack("store", 999.0, ""), False),
        (Ack("store", 1000.0 - EXCUSE_SECONDS - 1, BUCKET), False),
        (Ack("store", 1001.0 + REPLY_SECONDS - 1, BUCKET), True),
        (Ack("store", 1001.0 + REPLY_SECONDS + 1, BUCKET), False),
    ],
    ids=["store", "fsync", "somewhere", "master", "another store", "held", "long before", "answered late", "after"],
)
def test_a_loss_is_excused_only_at_a_level_in_a_store_and_at_a_time_that_the_fault_hits(
    ack: Ack, excused: bool
) -> None:
    assert lost_with(FLUSH, ack) == ((0, 1) if excused else (1, 0))


def test_a_bucket_that_is_still_lost_in_the_end_is_a_violation_with_its_name() -> None:
    history = good()
    history.unrescued = {BUCKET: "LOST"}
    findings = check(history)
    assert findings.violations == {"bucket_unrescued": 1}
    assert findings.examples["bucket_unrescued"] == [f"{BUCKET}: a bucket of store default, LOST in the end"]


def test_a_process_id_that_a_later_agent_has_is_not_that_of_the_dead_one() -> None:
    history = good()
    history.deaths = [Death(1, 980.0, again_at=985.0)]
    assert check(history).violations == {}
    history.deaths = [Death(1, 980.0, again_at=993.5)]
    assert check(history).violations == {"started_dead": 3}


def test_a_fault_that_only_forgets_the_last_seconds_excuses_no_older_loss() -> None:
    cut = FLUSH._replace(forgets_seconds=10.0)
    assert lost_with(cut, Ack("store", FLUSH.at - 9.0, BUCKET)) == (0, 1)
    assert lost_with(cut, Ack("store", FLUSH.at - 11.0, BUCKET)) == (1, 0)


@pytest.mark.parametrize(
    ("evacuation", "excused"),
    [
        (None, False),
        (Evacuation(1000.0 - 90), True),
        (Evacuation(1000.0 - 90, 1000.5), True),
        (Evacuation(1000.0 - 90, 999.5), False),
        (Evacuation(1000.0 - 20), False),
        (Evacuation(1000.5), False),
    ],
    ids=["owned", "never empty", "empty too late", "empty before", "left too late", "left after the fault"],
)
def test_what_a_bucket_without_an_owner_holds_is_excused_until_it_is_empty(
    evacuation: Evacuation | None, excused: bool
) -> None:
    """The job was acknowledged 100 s before the fault, so 40 s too early for a bucket with an owner."""
    history = good()
    lose(history)
    history.acks[JOBS[3]] = Ack("store", FLUSH.at - 100.0, BUCKET)
    history.faults = [FLUSH]
    history.evacuations = {} if evacuation is None else {BUCKET: evacuation}
    assert check(history).violations == ({} if excused else {"lost": 1})
    history.faults = [FLUSH._replace(forgets_seconds=10.0)]
    assert check(history).violations == {"lost": 1}


def test_no_fault_excuses_a_job_that_the_master_knows_and_does_not_end() -> None:
    history = good()
    leave_unfinished(history)
    history.faults = [FLUSH]
    findings = check(history)
    assert (findings.lost, findings.unfinished) == (1, 1)


# ---------------------------------------------------------------- unknown outcomes, re-execution


def test_unknown_outcomes_are_neither_lost_nor_unexpected() -> None:
    history = good()
    for job in JOBS[:4]:
        del history.acks[job]
    history.unknown = set(JOBS[:4])
    for job in JOBS[:1]:
        del history.rows[job]
        del history.runs[job]
    findings = check(history)
    assert findings.violations == {}
    assert (findings.recovered, findings.info) == (3, 1)


def test_runs_beyond_the_attempts_of_the_row_are_reexecutions() -> None:
    history = good()
    history.runs[JOBS[1]] *= 3
    history.rows[JOBS[1]] = history.rows[JOBS[1]]._replace(attempt=2)  # one of them is a retry of a failure
    assert check(history).reexecuted == 1


def test_rescue_time_runs_from_the_kill_to_the_next_start_of_what_was_running() -> None:
    history = good()
    killed = FaultRecord("child_kill", 1000.0, 1000.0, frozenset(), pids=(1,))
    history.faults = [killed]
    history.runs[JOBS[1]].append(Run(2, 1001.5, 1, 2, "chaos.slow"))
    history.runs[JOBS[2]].append(Run(2, 1004.0, 2, 2, "chaos.slow"))
    history.ended[JOBS[2]] = [(1, 999.0)]  # it had ended before: that it ran again is no rescue of it
    assert rescue_seconds(history) == {"jobs": 1, "p50": 1.5, "p99": 1.5, "max": 1.5}


# ---------------------------------------------------------------- witnesses and schedules


def test_what_is_witnessed_is_read_back_and_a_line_without_end_is_passed_over(tmp_path: Path) -> None:
    witness_writer = WitnessWriter(tmp_path, "producer")
    witness_writer.write(WitnessLine(phase=Phase.ATTEMPTED, values=(5, 7)))
    witness_writer.write(WitnessLine(phase=Phase.ACKNOWLEDGED, level="store", jobs=[JOBS[1]], bucket=BUCKET))
    with next(tmp_path.glob("*.jsonl")).open("ab") as file:
        file.write(b'{"phase":"acknowl')
    history = History()
    history.witnessed(read(tmp_path))
    assert history.attempts == 3
    assert history.acks[JOBS[1]][::2] == ("store", BUCKET)


def test_one_seed_is_one_schedule_and_every_kind_comes_before_any_comes_twice() -> None:
    kinds = [f"kind{number}" for number in range(12)]
    longest = dict.fromkeys(kinds, 2.0)
    one = plan(7, 300, kinds, longest)
    assert one == plan(7, 300, kinds, longest)
    assert one != plan(8, 300, kinds, longest)
    assert {planned.kind for planned in one[:12]} == set(kinds)
    assert all(planned.at > 0 and planned.at + planned.seconds <= 300 for planned in one)


def test_the_page_matches_the_catalogue_and_the_kept_reports() -> None:
    kept = page.PAGE.read_text(encoding="utf-8")
    assert page.made(kept) == kept, "run: python -m tests.chaos.page"


def test_long_faults_follow_one_another_and_the_named_ones_come_first() -> None:
    lasting = {"a": 20.0, "b": 60.0, "c": 30.0}
    found = plan_long(7, 400, lasting, ("b", "x", "c"))
    assert [one.kind for one in found[:3]] == ["b", "c", "a"]
    assert all(one.at + one.seconds < later.at for one, later in pairwise(found))
    assert found[-1].at + found[-1].seconds <= 400
    assert found == plan_long(7, 400, lasting, ("b", "x", "c"))
    assert plan_long(7, 400, {}, ("b",)) == []


def test_an_absence_of_the_master_makes_the_excuse_of_a_lost_store_longer() -> None:
    history = good()
    history.faults = [FLUSH._replace(at=990.0 + 3 + EXCUSE_SECONDS + 30, until=990.0 + 3 + EXCUSE_SECONDS + 31)]
    lose(history)
    assert check(history).violations == {"lost": 1}
    history.excuse_seconds += 60.0
    assert check(history).violations == {}
