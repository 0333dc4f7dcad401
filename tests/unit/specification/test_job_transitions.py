"""Properties of the table of job transitions that the protocol needs."""

from __future__ import annotations

from jobmaster.model.job import FINAL_STATES, JobState
from jobmaster.specification.job_transitions import TOKEN_BUMPS, TRANSITIONS, JobEvent


def test_nothing_leaves_a_final_state() -> None:
    assert [state for state, _ in TRANSITIONS if state in FINAL_STATES] == []


def test_states_that_live_only_in_memory_or_store_never_stand_in_the_master() -> None:
    written = {*TRANSITIONS.values(), *(state for state, _ in TRANSITIONS if state)}
    assert written.isdisjoint({JobState.SAVE_PENDING, JobState.QUEUED})


def test_every_final_state_can_be_reached_and_every_event_is_used() -> None:
    assert {*TRANSITIONS.values()} >= FINAL_STATES
    assert {event for _, event in TRANSITIONS} == set(JobEvent)


def test_only_an_assignment_or_a_job_taken_from_its_run_needs_a_new_token() -> None:
    assigned = {event for (_, event), to in TRANSITIONS.items() if to is JobState.ASSIGNED}
    assert (assigned - {JobEvent.ASSIGN_NEW}) | {
        JobEvent.RESCUE,
        JobEvent.UNCONFIRMED,
        JobEvent.REASSIGN,
    } == TOKEN_BUMPS


def test_a_held_job_is_never_started_without_an_assignment() -> None:
    assert (JobState.HELD, JobEvent.PERSIST) not in TRANSITIONS
    assert (JobState.HELD, JobEvent.SUCCEED) not in TRANSITIONS
