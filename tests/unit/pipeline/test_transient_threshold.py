"""The transient threshold follows the peaks of due jobs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from jobmaster.pipeline.plan.transient_threshold import ScheduledJobs, advise_threshold

CALM = ScheduledJobs(jobs=5000, per_minute=600, per_second=600, wait_us=5000.0, direct_wait_us=4000.0)


def test_without_scheduled_jobs_nothing_changes() -> None:
    assert advise_threshold(CALM._replace(jobs=0), 300.0).seconds == 300.0


def test_a_small_peak_lets_jobs_stay_in_the_master_for_longer() -> None:
    assert advise_threshold(CALM, 300.0).seconds == 10.0
    assert advise_threshold(CALM, 15.0).seconds == 15.0, "less than twice is no reason"


def test_a_peak_that_takes_minutes_needs_a_longer_threshold() -> None:
    peak = CALM._replace(per_minute=60_000, per_second=400)
    assert advise_threshold(peak, 300.0).seconds == 600.0


def test_scheduled_jobs_that_come_late_lengthen_it() -> None:
    late = CALM._replace(wait_us=20e6, direct_wait_us=1e6)
    advice = advise_threshold(late, 300.0)
    assert advice.seconds == 600.0
    assert "20.0 times as long" in advice.reason


@given(
    jobs=st.integers(0, 10**6), per_minute=st.integers(0, 10**7), per_second=st.integers(0, 10**5),
    wait_us=st.floats(0, 1e9), direct=st.floats(0, 1e9), present=st.floats(0.1, 3600),
)  # fmt: skip
def test_it_grows_with_the_peak_and_stays_within_its_bounds(
    jobs: int, per_minute: int, per_second: int, wait_us: float, direct: float, present: float
) -> None:
    seen = ScheduledJobs(jobs, per_minute, per_second, wait_us, direct)
    found = advise_threshold(seen, present).seconds
    assert found == present or 10 <= found <= 3600
    assert advise_threshold(seen._replace(per_minute=per_minute * 10), present).seconds >= found or found == present
