"""Which ranges of the master a roll-up reads: those with changes, those of the days, and side by side as one."""

from __future__ import annotations

from datetime import date

from jobmaster.pipeline.steps.live_ranges import LiveChanges, LiveRange

DAY_US = 86_400_000_000
RANGES = (
    LiveRange(None, 10 * DAY_US, "a"),
    LiveRange(10 * DAY_US, 11 * DAY_US, "b", frozenset({10, 14})),
    LiveRange(11 * DAY_US, 12 * DAY_US, "c", frozenset({11})),
    LiveRange(12 * DAY_US, 13 * DAY_US, "d", frozenset({12, 13})),
    LiveRange(13 * DAY_US, 14 * DAY_US, None),
)


def read(*days: int, changed: tuple[LiveRange, ...] = ()) -> list[dict[str, str]]:
    keys = frozenset(one.key for one in changed)
    return LiveChanges(RANGES, frozenset(), keys).to_read([date(1970, 1, 1 + day) for day in days])


def at(day: int) -> str:
    return f"1970-01-{1 + day}T00:00:00+00:00"


def test_a_day_is_read_where_its_jobs_were_created_and_where_jobs_ended_on_it() -> None:
    assert read(11) == [{"since": at(11), "until": at(12)}]
    assert read(14) == [{"since": at(10), "until": at(11)}]
    assert read(10, 11) == [{"since": at(10), "until": at(12)}], "two ranges side by side"
    assert read(11, 14) == [{"since": at(10), "until": at(12)}]
    assert read(20) == []


def test_ranges_with_changes_are_read_whatever_their_days() -> None:
    assert read(20, changed=RANGES[2:3]) == [{"since": at(11), "until": at(12)}]
    assert read(11, changed=(RANGES[0], RANGES[4])) == [
        {"until": at(10)},
        {"since": at(11), "until": at(12)},
        {"since": at(13)},
    ]
    assert read(11, changed=RANGES) == [{}], "all of them is everything"


def test_the_state_has_what_the_next_roll_up_compares() -> None:
    state = LiveChanges(RANGES, frozenset(), frozenset()).state()
    assert state[""] == {"high_us": 10 * DAY_US, "written": "a", "ended": []}
    assert state[str(10 * DAY_US)]["ended"] == [10, 14]
