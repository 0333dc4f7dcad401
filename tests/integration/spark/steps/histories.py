"""Random lawful histories, and ways to break each rule of them: what the audit is tried on."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

Row = dict[str, Any]
START = datetime(2026, 3, 1, tzinfo=UTC)
JOBS = (
    "id string, state string, token int, bucket_id string, bucket_epoch bigint, created_at timestamp, changed_at timestamp,"
    " ran_us bigint, waited_us bigint, result string, error string"
)
ATTEMPTS = (
    "job_id string, token int, bucket_id string, bucket_epoch bigint, outcome string,"
    " at timestamp, refused_at timestamp"
)


class History:
    """Lines of some jobs: rows in the lake, rows in the master, attempts in both."""

    def __init__(self, seed: int, jobs: int) -> None:
        self.random = random.Random(seed)
        self.lake: list[Row] = []
        self.master: list[Row] = []
        self.attempts: list[Row] = []
        self.broken: set[tuple[str, str]] = set()
        """(check, job id) of what was broken on purpose."""
        self._buckets = [str(UUID(int=self.random.getrandbits(128))) for _ in range(5)]
        self.ids = [self._job() for _ in range(jobs)]

    def _job(self) -> str:
        """One job through some attempts to an end, or to where it is now; late writes of owners that lost it."""
        dice = self.random
        id_ = str(UUID(int=dice.getrandbits(128)))
        at = START + timedelta(seconds=dice.uniform(0, 86_400))
        row: Row = {"id": id_, "created_at": at, "waited_us": dice.randrange(10**6), "ran_us": None, "result": None,
                    "error": None}  # fmt: skip
        token = 1
        for _ in range(dice.choice((0, 0, 0, 1, 2, 4))):
            at += timedelta(seconds=dice.uniform(1, 50))
            outcome = dice.choice(("failed", "timed_out", "lost", "refused"))
            line = {
                "job_id": id_,
                "token": token,
                **self._assignment(),
                "outcome": outcome,
                "at": at,
                "refused_at": None,
            }
            if outcome == "refused" or dice.random() < 0.2:
                line["refused_at"] = at + timedelta(seconds=1)
            self.attempts.append(line)
            token += 1
        at += timedelta(seconds=dice.uniform(1, 50))
        state = dice.choice(
            ("SUCCEEDED", "SUCCEEDED", "SUCCEEDED", "FAILED", "CANCELLED", "EXPIRED", "HELD", "PROCESSING")
        )
        row |= {"state": state, "token": token, "changed_at": at, **self._assignment()}
        if state in ("SUCCEEDED", "FAILED"):
            row["ran_us"] = dice.randrange(10**6)
        if state == "SUCCEEDED":
            row["result"] = "1" if dice.random() < 0.8 else None
        elif state == "FAILED":
            row["error"] = "{}"
        elif state == "HELD" or (state in ("CANCELLED", "EXPIRED") and dice.random() < 0.5):
            row |= {"bucket_id": None, "bucket_epoch": None}
        final = state not in ("HELD", "PROCESSING")
        (self.lake if final and dice.random() < 0.6 else self.master).append(row)
        if state == "FAILED" and dice.random() < 0.2:  # a rescue ended it; the dead owner's late write was refused
            self._refused_mark(row)
        return id_

    def _assignment(self) -> Row:
        return {"bucket_id": self.random.choice(self._buckets), "bucket_epoch": self.random.randrange(1, 4)}

    def _refused_mark(self, row: Row) -> None:
        self.attempts.append({
            **{name: row[name] for name in ("token", "bucket_id", "bucket_epoch")},
            "job_id": row["id"], "outcome": "refused", "at": row["changed_at"] + timedelta(seconds=1),
            "refused_at": row["changed_at"] + timedelta(seconds=1),
        })  # fmt: skip

    # ------------------------------------------------------------ breaking

    def break_one(self) -> None:
        """Break one rule of one job that is whole so far."""
        name = self.random.choice(list(BREAKS))
        touched = {job for _, job in self.broken}
        rows = [row for row in [*self.lake, *self.master] if row["id"] not in touched]
        self.random.shuffle(rows)
        for row in rows:
            if BREAKS[name](self, row):
                self.broken.add((name.partition(":")[0], row["id"]))
                return

    def _final(self, row: Row) -> bool:
        return row["state"] in ("SUCCEEDED", "FAILED", "CANCELLED", "EXPIRED")

    def line(self, row: Row, token: int, at: datetime, outcome: str = "failed") -> Row:
        return {
            "job_id": row["id"],
            "token": token,
            **self._assignment(),
            "outcome": outcome,
            "at": at,
            "refused_at": None,
        }


def _second_row(history: History, row: Row) -> bool:
    if not history._final(row):
        return False
    history.random.choice((history.lake, history.master)).append(dict(row))
    return True


def _concluded_and_tried(history: History, row: Row) -> bool:
    if not history._final(row) or row["bucket_id"] is None:
        return False
    if any(line["job_id"] == row["id"] and line["token"] == row["token"] for line in history.attempts):
        return False
    line = {name: row[name] for name in ("token", "bucket_id", "bucket_epoch")}
    history.attempts.append(
        {**line, "job_id": row["id"], "outcome": "failed", "at": row["changed_at"], "refused_at": None}
    )
    return True


def _set(state: str, **columns: Any) -> Callable[[History, Row], bool]:
    def harm(history: History, row: Row) -> bool:
        if row["state"] != state:
            return False
        row |= columns
        return True

    return harm


def _held_in_a_bucket(history: History, row: Row) -> bool:
    if row["state"] != "HELD":
        return False
    row |= history._assignment()
    return True


def _behind(states: tuple[str, ...]) -> Callable[[History, Row], bool]:
    def harm(history: History, row: Row) -> bool:
        if row["state"] not in states:
            return False
        history.attempts.append(history.line(row, row["token"] + 1, row["changed_at"]))
        return True

    return harm


def _success_of_a_refused(history: History, row: Row) -> bool:
    if row["state"] != "SUCCEEDED":
        return False
    history._refused_mark(row)
    return True


def _lost(history: History, row: Row) -> bool:
    if not any(line["job_id"] == row["id"] for line in history.attempts):
        return False
    for place in (history.lake, history.master):
        place[:] = [one for one in place if one is not row]
    return True


def _archived_unfinished(history: History, row: Row) -> bool:
    if history._final(row):
        return False
    history.master.remove(row)
    history.lake.append(row)
    return True


def _ended_before_it_began(history: History, row: Row) -> bool:
    if any(line["job_id"] == row["id"] for line in history.attempts):
        return False
    row["changed_at"] = row["created_at"] - timedelta(hours=3)
    return True


def _tried_after_the_end(history: History, row: Row) -> bool:
    if not history._final(row) or row["token"] < 2:
        return False
    lines = [line for line in history.attempts if line["job_id"] == row["id"] and line["outcome"] != "refused"]
    if not lines:
        return False
    lines[-1]["at"] = row["changed_at"] + timedelta(seconds=1)
    return True


BREAKS: dict[str, Callable[[History, Row], bool]] = {
    "i1_rows": _second_row,
    "i1_attempts": _concluded_and_tried,
    "i2_outcome:error": _set("SUCCEEDED", error="{}"),
    "i2_outcome:nowhere": _set("SUCCEEDED", bucket_id=None),
    "i2_outcome:why": _set("FAILED", error=None),
    "i2_outcome:result": _set("CANCELLED", result="1"),
    "i3_token": _behind(("HELD", "PROCESSING")),
    "i4_stale": _behind(("SUCCEEDED", "FAILED", "CANCELLED", "EXPIRED")),
    "i4_refused": _success_of_a_refused,
    "i5_lost": _lost,
    "i7_bucket:held": _held_in_a_bucket,
    "i7_bucket:flying": _set("PROCESSING", bucket_epoch=None),
    "i8_archived": _archived_unfinished,
    "t1_times:ended": _ended_before_it_began,
    "t1_times:ran": _set("SUCCEEDED", ran_us=-1),
    "t2_after": _tried_after_the_end,
}
