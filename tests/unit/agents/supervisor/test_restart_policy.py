"""When a supervisor starts a child again, and when it gives up."""

from __future__ import annotations

from jobmaster_agents.launch.shared_deadline import AgentPhase
from jobmaster_agents.supervisor.restart_policy import (
    AWAY_SECONDS_MAX,
    REFUSED_SECONDS_MAX,
    RESTART_SECONDS_MAX,
    SERVED_SECONDS_MAX,
    STEADY_SECONDS,
    deaths_in_a_row,
    is_crash_loop,
    is_refusal,
    restart_delay,
)


def test_restarts_come_at_once_then_ever_later_up_to_a_bound() -> None:
    for code, longest in (
        (1, RESTART_SECONDS_MAX),
        (-9, RESTART_SECONDS_MAX),
        (69, AWAY_SECONDS_MAX),
        (75, AWAY_SECONDS_MAX),
    ):
        delays = [restart_delay(deaths, code) for deaths in range(1, 40)]
        assert delays[0] == 0.0
        assert delays == sorted(delays)
        assert delays[1] == 0.5
        assert delays[-1] == longest


def test_how_long_a_restart_waits_depends_on_how_far_the_child_had_come() -> None:
    """One that had opened its buckets died most often of a job, and each death brings that job nearer to its end."""

    def longest(code: int, phase: AgentPhase) -> float:
        return max(restart_delay(deaths, code, phase) for deaths in range(1, 40))

    assert longest(1, AgentPhase.STARTING) == longest(1, AgentPhase.REGISTERED) == RESTART_SECONDS_MAX
    assert longest(-9, AgentPhase.SERVING) == SERVED_SECONDS_MAX
    assert longest(77, AgentPhase.STARTING) == longest(77, AgentPhase.REGISTERED) == REFUSED_SECONDS_MAX


def test_a_death_after_a_long_life_is_the_first_again() -> None:
    assert deaths_in_a_row(5, STEADY_SECONDS - 1.0) == 6
    assert deaths_in_a_row(5, STEADY_SECONDS) == 1
    assert [is_crash_loop(deaths) for deaths in (1, 2, 3, 4)] == [False, False, True, True]


def test_a_refusal_is_a_permanent_error_of_a_child_that_has_not_served() -> None:
    assert is_refusal(78, AgentPhase.STARTING)
    assert is_refusal(77, AgentPhase.REGISTERED)
    assert not is_refusal(77, AgentPhase.SERVING)
    assert not is_refusal(69, AgentPhase.STARTING)
