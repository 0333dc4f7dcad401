"""Options of a plan: what is read, and the one error of each mistake."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobmaster.model.errors import InputError
from jobmaster.pipeline.plan.options import (
    PlanOptions,
    parse_arrivals,
    parse_mix,
    parse_objectives,
    planned_factors,
    require_lanes,
)

STARTS = {("default", "critical"): 100.0, ("default", "low"): 300.0, ("payroll", "low"): 600.0}


@pytest.mark.parametrize("text", ["urgent=1s", "critical=soon", "critical", "payroll/=1s", "/high=1s"])
def test_an_objective_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="--objective"):
        parse_objectives([text])


def test_the_nearest_objective_and_factor_of_a_group_count() -> None:
    options = PlanOptions(
        parse_objectives(["low=5s", "payroll/low=500ms"]), arrivals=parse_arrivals(["x2", "low=x3", "payroll/low=0.5"])
    )
    groups = list(STARTS)
    assert [options.objective_us(group) for group in groups] == [1e6, 5e6, 5e5]
    assert planned_factors(options, STARTS) == dict(zip(groups, (2.0, 3.0, 0.5), strict=True))


@pytest.mark.parametrize("text", ["twice", "x0", "x-1", "urgent=x2", "high=x", "x1e3", "x2000"])
def test_a_factor_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="--arrivals"):
        parse_arrivals([text])


@pytest.mark.parametrize("texts", [["high=2"], ["urgent=5%"], ["payroll/high=5%"], ["high=60%", "low=60%"]])
def test_a_mix_that_is_none_is_refused(texts: list[str]) -> None:
    with pytest.raises(InputError, match="--mix"):
        parse_mix(texts)


@given(share=st.floats(0.01, 0.99), factor=st.floats(0.1, 10))
def test_a_mix_moves_arrivals_between_priorities_and_keeps_their_number(share: float, factor: float) -> None:
    options = PlanOptions(mix={"critical": share}, arrivals={"": factor})
    factors = planned_factors(options, STARTS)
    planned = {group: STARTS[group] * factors[group] for group in STARTS}
    assert sum(planned.values()) == pytest.approx(factor * 1000)
    assert planned["default", "critical"] == pytest.approx(factor * share * 1000)
    # Lanes of one priority keep their proportion.
    assert planned["payroll", "low"] == pytest.approx(2 * planned["default", "low"])


def test_a_mix_needs_jobs_to_know_of() -> None:
    with pytest.raises(InputError, match="no job of that priority"):
        planned_factors(PlanOptions(mix={"high": 0.2}), STARTS)
    with pytest.raises(InputError, match="no other priority"):
        planned_factors(PlanOptions(mix={"critical": 0.2, "low": 0.3}), STARTS)


def test_a_lane_that_is_neither_configured_nor_seen_is_refused() -> None:
    require_lanes(PlanOptions({"payroll/low": 1.0, "critical": 1.0}), {"default", "payroll"})
    with pytest.raises(InputError, match="lane 'payrol'") as caught:
        require_lanes(PlanOptions({"payrol/low": 1.0}), {"default", "payroll"})
    assert "default, payroll" in (caught.value.hint or "")
    with pytest.raises(InputError, match=r"--arrivals payrol/low"):
        require_lanes(PlanOptions(arrivals={"payrol/low": 2.0}), {"default"})
