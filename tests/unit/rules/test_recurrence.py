"""When schedules fire, held against two other implementations: croniter in UTC, and a search minute by minute in zones."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from croniter import croniter
from hypothesis import given, settings
from hypothesis import strategies as st

from jobmaster.model.errors import InputError
from jobmaster.rules.recurrence import (
    INTERVAL_SECONDS_MAX,
    Recurrence,
    checked_cron,
    interval_text,
    interval_us,
    jitter_us,
    zone_of,
)

DAY_US = 86_400_000_000
MINUTE_US = 60_000_000
MINUTE = timedelta(minutes=1)

# Two of the transitions stand in each year from 2007 on; Lord Howe moves by half an hour, Havana and Beirut at midnight,
# Casablanca backwards for the month of Ramadan.
ZONES = (
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "America/Havana",
    "Asia/Beirut",
    "Africa/Casablanca",
    "Asia/Kolkata",
    "Pacific/Apia",
)


def us(moment: datetime) -> int:
    return round(moment.timestamp()) * 1_000_000


def local(zone: str, *parts: int) -> datetime:
    return datetime(*parts, tzinfo=ZoneInfo(zone))  # type: ignore[arg-type,misc]


def fires(expression: str, zone: str, start: datetime, days: float) -> list[str]:
    """Fires after ``start``, as the zone's own clock shows them."""
    end = us(start) + int(days * DAY_US)
    found = Recurrence(expression, zone).between_us(us(start), end, 10_000)
    return [datetime.fromtimestamp(one // 1_000_000, ZoneInfo(zone)).strftime("%d %H:%M %Z") for one in found]


# ------------------------------------------------------------ a second implementation: croniter, in UTC


def numbers(least: int, most: int) -> st.SearchStrategy[str]:
    one = st.integers(least, most)
    return st.one_of(
        one.map(str),
        st.lists(one, min_size=1, max_size=4, unique=True).map(lambda items: ",".join(map(str, items))),
        # Of two different numbers: the other implementation reads 7-7 as every number.
        st.tuples(one, one).filter(lambda pair: pair[0] != pair[1]).map(lambda pair: f"{min(pair)}-{max(pair)}"),
    )


def stepped(least: int, most: int) -> st.SearchStrategy[str]:
    return st.one_of(
        st.just("*"), numbers(least, most), st.integers(1, max(most // 2, 2)).map(lambda step: f"*/{step}")
    )


FIVE = st.tuples(
    stepped(0, 59),
    stepped(0, 23),
    st.one_of(st.just("*"), numbers(1, 28)),
    st.one_of(st.just("*"), numbers(1, 12)),
    st.one_of(st.just("*"), numbers(0, 6)),
).map(" ".join)
MOMENTS = st.integers(1_100_000_000, 2_050_000_000).map(lambda seconds: datetime.fromtimestamp(seconds, UTC))


@given(FIVE, MOMENTS)
@settings(max_examples=200)
def test_five_fields_fire_as_in_another_implementation(expression: str, start: datetime) -> None:
    recurrence, at = Recurrence(expression), us(start)
    other = croniter(expression, datetime.fromtimestamp(at // 1_000_000, UTC))
    for _ in range(4):
        found = recurrence.next_us(at)
        assert found == us(other.get_next(datetime))
        at = found


@given(stepped(0, 59), FIVE, MOMENTS)
@settings(max_examples=100)
def test_six_fields_begin_with_the_second(second: str, rest: str, start: datetime) -> None:
    recurrence, at = Recurrence(f"{second} {rest}"), us(start)
    other = croniter(f"{second} {rest}", datetime.fromtimestamp(at // 1_000_000, UTC), second_at_beginning=True)
    for _ in range(4):
        found = recurrence.next_us(at)
        assert found == us(other.get_next(datetime))
        at = found


# ------------------------------------------------------------ a second implementation: every minute of a zone


def values(field: str, least: int, most: int) -> set[int]:
    """The numbers of a field of the kinds that are drawn here."""
    if field.startswith("*"):
        return set(range(least, most + 1, int(field[2:] or 1)))
    found: set[int] = set()
    for part in field.split(","):
        low, _, high = part.partition("-")
        found |= set(range(int(low), int(high or low) + 1))
    return found


class Fields:
    """A cron expression of the kinds that are drawn here, read once."""

    def __init__(self, expression: str) -> None:
        minute, hour, day, month, weekday = expression.split()
        self.repeats = "*" in (minute[0], hour[0])
        self._both = "*" in (day[0], weekday[0])
        self._minutes, self._hours, self._months = values(minute, 0, 59), values(hour, 0, 23), values(month, 1, 12)
        self._days, self._weekdays = values(day, 1, 31), values(weekday, 0, 6)

    def match(self, wall: datetime) -> bool:
        if wall.minute not in self._minutes or wall.hour not in self._hours or wall.month not in self._months:
            return False
        in_month, in_week = wall.day in self._days, wall.isoweekday() % 7 in self._weekdays
        return (in_month and in_week) if self._both else (in_month or in_week)


def minutes(zone: ZoneInfo, start: datetime, days: int) -> Iterator[tuple[datetime, datetime]]:
    """Every minute: as a moment, and as the zone's clock shows it."""
    moment = start
    for _ in range(days * 1440):
        moment += MINUTE
        yield moment, moment.astimezone(zone).replace(tzinfo=None)


def searched(expression: str, zone: ZoneInfo, start: datetime, days: int) -> list[int]:
    """The fires by the documented rules, minute by minute."""
    fields = Fields(expression)
    if fields.repeats:
        return [us(moment) for moment, wall in minutes(zone, start, days) if fields.match(wall)]
    found, latest = [], max(wall for _, wall in minutes(zone, start - timedelta(days=1), 1))
    for moment, wall in minutes(zone, start, days):
        # Minutes that the clock shows for the first time: one as a rule, a whole gap after it, none when it was set back.
        passed = (wall - latest) // MINUTE
        if any(fields.match(latest + n * MINUTE) for n in range(1, passed + 1)):
            found.append(us(moment))
        latest = max(latest, wall)
    return found


def near_transitions(zone: str) -> st.SearchStrategy[datetime]:
    """Moments some days before a change of the offset; any moment in a zone without one."""
    zone_info, found = ZoneInfo(zone), []
    day = datetime(2010, 1, 1, 12, tzinfo=UTC)
    while day.year < 2028:
        if day.astimezone(zone_info).utcoffset() != (day + timedelta(days=1)).astimezone(zone_info).utcoffset():
            found.append(day - timedelta(days=1))
        day += timedelta(days=1)
    hours = st.integers(0, 72).map(lambda hours: timedelta(hours=hours, minutes=hours * 7 % 60))
    return st.tuples(st.sampled_from(found or [day]), hours).map(lambda pair: pair[0] + pair[1])


@pytest.mark.parametrize("examples", [4, pytest.param(60, marks=[pytest.mark.slow, pytest.mark.long])])
@pytest.mark.parametrize("zone", ZONES)
def test_zones_fire_as_a_search_minute_by_minute(zone: str, examples: int) -> None:
    hours = st.one_of(stepped(0, 23), st.sampled_from(["0", "1", "2", "3", "1-3", "0-2", "*/2"]))
    days = st.one_of(st.just("*"), numbers(1, 28))
    expressions = st.tuples(stepped(0, 59), hours, days, st.just("*"), st.one_of(st.just("*"), numbers(0, 6)))

    @given(expressions.map(" ".join), near_transitions(zone))
    @settings(max_examples=examples)
    def check(expression: str, start: datetime) -> None:
        # Apia skipped a whole day; a fixed time of that day fires once at its end, as the first moment after the gap.
        found = Recurrence(expression, zone).between_us(us(start), us(start) + 4 * DAY_US, 10_000)
        assert found == searched(expression, ZoneInfo(zone), start, 4)

    check()


# ------------------------------------------------------------ the rules that are written down


def test_a_fixed_time_in_the_gap_of_spring_fires_at_its_end() -> None:
    start = local("Europe/Berlin", 2026, 3, 28, 12)
    assert fires("30 2 * * *", "Europe/Berlin", start, 2) == ["29 03:00 CEST", "30 02:30 CEST"]


def test_fixed_times_in_one_gap_fire_once() -> None:
    start = local("Europe/Berlin", 2026, 3, 28, 12)
    assert fires("0,15,30 2,3 * * *", "Europe/Berlin", start, 0.7) == [
        "29 03:00 CEST",
        "29 03:15 CEST",
        "29 03:30 CEST",
    ]


def test_a_fixed_time_in_the_hour_that_autumn_repeats_fires_once() -> None:
    start = local("Europe/Berlin", 2026, 10, 24, 12)
    assert fires("30 2 * * *", "Europe/Berlin", start, 2) == ["25 02:30 CEST", "26 02:30 CET"]


def test_in_the_repeated_hour_a_fixed_time_is_over() -> None:
    """Seen from the second 02:10, the first 02:30 was earlier: a search from the wall clock alone would go back in time."""
    second = local("Europe/Berlin", 2026, 10, 25, 2, 10).replace(fold=1)
    assert fires("30 2 * * *", "Europe/Berlin", second, 2) == ["26 02:30 CET"]


def test_a_repetition_follows_the_elapsed_time() -> None:
    spring, autumn = local("Europe/Berlin", 2026, 3, 29, 1, 10), local("Europe/Berlin", 2026, 10, 25, 1, 40)
    assert fires("*/30 * * * *", "Europe/Berlin", spring, 1 / 16) == ["29 01:30 CET", "29 03:00 CEST", "29 03:30 CEST"]
    assert fires("*/30 * * * *", "Europe/Berlin", autumn, 1 / 12) == [
        "25 02:00 CEST",
        "25 02:30 CEST",
        "25 02:00 CET",
        "25 02:30 CET",
    ]


def test_six_fields_have_the_same_rules() -> None:
    start = local("Europe/Berlin", 2026, 3, 28, 12)
    assert fires("* 30 2 * * *", "Europe/Berlin", start, 0.7) == ["29 03:00 CEST"]


def test_a_day_that_the_zone_skips_fires_once() -> None:
    """Samoa had no 30 December 2011."""
    start = local("Pacific/Apia", 2011, 12, 29, 12)
    assert fires("0 9 * * *", "Pacific/Apia", start, 1.5) == ["31 00:00 +14", "31 09:00 +14"]


# ------------------------------------------------------------ intervals


def test_an_interval_without_start_is_the_same_in_every_process() -> None:
    recurrence = Recurrence("300s")
    assert recurrence.next_us(us(datetime(2026, 1, 1, 12, 3, 7, tzinfo=UTC))) == us(
        datetime(2026, 1, 1, 12, 5, tzinfo=UTC)
    )


@given(st.integers(1, 10**7), st.integers(0, 2 * 10**9), st.integers(0, 2 * 10**9))
def test_an_interval_has_its_start_as_first_fire_and_does_not_drift(seconds: int, start: int, after: int) -> None:
    recurrence = Recurrence(f"{seconds}s", start_us=start * 1_000_000)
    found = recurrence.next_us(after * 1_000_000)
    assert found is not None
    fired = found // 1_000_000
    assert found % 1_000_000 == 0
    assert fired >= start
    assert (fired - start) % seconds == 0
    assert fired > after
    assert fired == start or fired - seconds <= after or fired - seconds < start


@pytest.mark.parametrize("text", ["0s", "0.5s", f"{INTERVAL_SECONDS_MAX + 1}s"])
def test_intervals_out_of_range_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="an interval must be between"):
        Recurrence(text)


@pytest.mark.parametrize("seconds", [0, -5, 0.25, float("nan"), float("inf")])
def test_numbers_that_are_no_interval_are_refused(seconds: float) -> None:
    with pytest.raises(InputError, match="an interval must be between"):
        interval_text(seconds)


def test_the_text_of_an_interval_is_read_again() -> None:
    assert interval_us(interval_text(90.25)) == 90_250_000
    assert interval_text(300) == "300s"


# ------------------------------------------------------------ bounds and jitter


def test_start_and_end_are_possible_fires_and_nothing_beyond_them_is() -> None:
    start, end = datetime(2026, 1, 1, 3, tzinfo=UTC), datetime(2026, 1, 3, 3, tzinfo=UTC)
    recurrence = Recurrence("0 3 * * *", start_us=us(start), end_us=us(end))
    assert recurrence.between_us(0, 10 * us(end), 100) == [us(start), us(start) + DAY_US, us(end)]
    assert recurrence.next_us(us(end)) is None


def test_the_number_of_fires_is_bounded() -> None:
    assert len(Recurrence("* * * * * *").between_us(0, 10**15, 7)) == 7


def test_jitter_is_within_its_bound_and_the_same_everywhere() -> None:
    delays = [jitter_us("nightly", minute * MINUTE_US, 30.0) for minute in range(500)]
    assert delays == [jitter_us("nightly", minute * MINUTE_US, 30.0) for minute in range(500)]
    assert min(delays) >= 0
    assert max(delays) < 30_000_000
    assert max(delays) - min(delays) > 20_000_000, "it does not spread"
    assert jitter_us("nightly", MINUTE_US, 30.0) != jitter_us("other", MINUTE_US, 30.0)
    assert jitter_us("nightly", MINUTE_US, 0.0) == 0


# ------------------------------------------------------------ bad input: one clear error


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("0 0 30 2 *", "no month 2 has a day 30"),
        ("0 0 31 4,6 *", "no month 4,6 has a day 31"),
        ("0 0 1 FOO *", "'FOO' cannot be the month"),
        ("61 * * * *", "'61' cannot be the minute"),
        ("0 24 * * *", "'24' cannot be the hour"),
        ("0 0 32 * *", "'32' cannot be the day of month"),
        ("0 0 * 13 *", "'13' cannot be the month"),
        ("0 0 * * 8", "'8' cannot be the day of week"),
        ("60 0 0 * * *", "'60' cannot be the second"),
        ("50-10 * * * *", "'50-10' cannot be the minute"),
        ("*/0 * * * *", r"'\*/0' cannot be the minute"),
        ("-5 * * * *", "'-5' cannot be the minute"),
        ("* * * *", "has 4 fields"),
        ("* * * * * * *", "has 7 fields"),
        ("", "has 0 fields"),
        ("@dayly", "is no word for a time"),
        ("x" * 300, "has 300 characters"),
    ],
)
def test_impossible_expressions_are_refused(expression: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        checked_cron(expression)


@pytest.mark.parametrize(
    ("expression", "valid"),
    [
        ("61 * * * *", "0-59"),
        ("60 0 0 * * *", "0-59"),
        ("0 24 * * *", "0-23"),
        ("0 0 0 * *", "1-31"),
        ("0 0 * 13 *", "1-12"),
    ],
)
def test_a_refused_field_has_its_range_as_a_hint(expression: str, valid: str) -> None:
    with pytest.raises(InputError) as caught:
        checked_cron(expression)
    assert valid in str(caught.value.hint)


@pytest.mark.parametrize(
    ("seconds", "hint"), [(0.5, "more often than once a second"), (4e8, "a date of each year"), (-5.0, "negative")]
)
def test_an_interval_out_of_bounds_has_the_hint_of_its_bound(seconds: float, hint: str) -> None:
    with pytest.raises(InputError) as caught:
        interval_text(seconds)
    assert hint in str(caught.value.hint)


@pytest.mark.parametrize("zone", ["CEST", "PDT", "IST"])
def test_no_abbreviation_is_suggested_for_a_zone(zone: str) -> None:
    with pytest.raises(InputError) as caught:
        zone_of(zone)
    assert caught.value.hint == "give an IANA name such as Europe/Berlin, or UTC"


def test_words_are_written_out() -> None:
    assert checked_cron(" @Daily ") == "0 0 * * *"
    assert checked_cron("0  3 * * mon-fri") == "0 3 * * MON-FRI"


@pytest.mark.parametrize(
    "zone", ["Europe/Berlim", "", "../etc/passwd", "localtime", "Europe", "/etc/localtime", "a\0b"]
)
def test_unknown_zones_are_refused(zone: str) -> None:
    with pytest.raises(InputError, match="there is no time zone"):
        zone_of(zone)


def test_a_misspelt_zone_gets_a_suggestion() -> None:
    with pytest.raises(InputError, match="did you mean 'Europe/Berlin'"):
        zone_of("europe/berlin ")


def test_a_range_in_which_nothing_fires_is_refused() -> None:
    start = us(datetime(2026, 3, 1, tzinfo=UTC))
    with pytest.raises(InputError, match="never fires between 2026-03-01"):
        Recurrence("0 0 29 2 *", start_us=start, end_us=start + 30 * DAY_US)
    with pytest.raises(InputError, match="ends before it starts"):
        Recurrence("0 0 * * *", start_us=start, end_us=start - 1)
