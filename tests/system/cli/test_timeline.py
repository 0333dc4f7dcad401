"""``jobmaster job timeline``: every assignment with its identity, every refused write, and why a job ended as it did."""

from __future__ import annotations

from typing import Any

from jobmaster.cli.commands.job_rows import timeline_rows
from jobmaster.client.jobs import timeline as history
from jobmaster.clock import new_id
from jobmaster.model.ids import created_ms, text
from jobmaster.model.job import ErrorInfo, JobState, Priority
from jobmaster.model.job_view import Attempt, JobView

JOB, BUCKET, OTHER = new_id(), new_id(), new_id()
BEGAN = created_ms(JOB) * 1000


def view(state: JobState, after_us: int, **parts: Any) -> JobView:
    return JobView(
        id_bytes=JOB, state=state, priority=Priority.MEDIUM, lane="default", handler="h", token=parts.pop("token", 3),
        attempt=parts.pop("attempt", 1), rescues=parts.pop("rescues", 0), bucket_id=BUCKET, bucket_epoch=1,
        changed_us=BEGAN + after_us, **parts,
    )  # fmt: skip


def attempt(token: int, outcome: str, after_us: int, *, refused_us: int | None = None, **parts: Any) -> Attempt:
    return Attempt(
        token=token, bucket_id=OTHER, bucket_epoch=7, concluding=parts.pop("concluding", False), outcome=outcome,
        at_us=BEGAN + after_us, ran_us=5, refused_us=BEGAN + refused_us if refused_us else None,
        refused_count=1 if refused_us else 0, **parts,
    )  # fmt: skip


def timeline(*given: Any) -> list[dict[str, Any]]:
    return timeline_rows(history.timeline(*given))


def events(lines: list[dict[str, Any]]) -> list[str]:
    return [line["event"] for line in lines]


def test_attempts_rescues_and_refused_writes_stand_in_order_with_their_identities() -> None:
    late = ErrorInfo(type="Timeout", message="too long", reason="timeout")
    lines = timeline(
        view(JobState.SUCCEEDED, 900, ran_us=100, waited_us=3, rescues=1, attempt=2),
        [
            attempt(1, "timed_out", 100, error=late),
            attempt(2, "lost", 400, refused_us=1200),
            attempt(3, "SUCCEEDED", 900, concluding=True),
        ],
    )
    assert events(lines) == ["submitted", "timed_out", "lost", "started", "SUCCEEDED", "REFUSED"]
    assert [line["token"] for line in lines] == [None, 1, 2, 3, 3, 2]
    assert {(line["bucket_id"], line["bucket_epoch"]) for line in lines[1:3]} == {(text(OTHER), 7)}
    assert "[timeout]" in lines[1]["detail"]
    assert "rescued 1 time(s)" in lines[4]["detail"]


def test_a_snooze_is_seen_and_is_no_attempt() -> None:
    later = ErrorInfo(type="jobmaster.handlers.decisions.Snooze", message="not ready", reason="snoozed")
    found = [
        attempt(1, "snoozed", 100, error=later),
        attempt(2, "failed", 200),
        attempt(3, "snoozed", 300, error=later),
    ]
    lines = timeline(view(JobState.SUCCEEDED, 900, ran_us=100, waited_us=3, attempt=2, token=4), found)
    assert events(lines) == ["submitted", "snoozed", "failed", "snoozed", "started", "SUCCEEDED"]
    assert [line.get("attempt") for line in lines[1:5]] == [None, 1, None, 2]
    assert "not ready [snoozed]" in lines[1]["detail"]


def test_the_reason_of_an_abandoned_job_and_its_late_outcome_are_seen() -> None:
    lost = ErrorInfo(type="Abandoned", message="its agent was lost", reason="abandoned")
    lines = timeline(view(JobState.FAILED, 500, error=lost, token=1), [attempt(1, "refused", 800, refused_us=800)])
    assert events(lines) == ["submitted", "FAILED", "REFUSED"]
    assert lines[1]["detail"] == "Abandoned: its agent was lost [abandoned]"


def test_what_goes_on_is_the_last_line() -> None:
    lines = timeline(view(JobState.PROCESSING, 10), [attempt(1, "failed", 400)])
    assert events(lines) == ["submitted", "failed", "PROCESSING"]
