"""The table of bucket transitions: exactly the two lives of a bucket."""

from __future__ import annotations

import pytest

from jobmaster.model.bucket import BucketState
from jobmaster.specification.bucket_transitions import EPOCH_BUMPS, TRANSITIONS, BucketEvent

S, E = BucketState, BucketEvent


def walk(start: BucketState, *events: BucketEvent) -> list[BucketState]:
    states = [start]
    for event in events:
        states.append(TRANSITIONS[states[-1], event])
    return states


def test_graceful_life() -> None:
    assert walk(S.ACTIVE, E.CLOSE_INTAKE, E.RETIRE) == [S.ACTIVE, S.COMPLETING, S.READY_TO_DELETE]


@pytest.mark.parametrize("start", [S.ACTIVE, S.COMPLETING, S.FROZEN, S.DRAINING])
def test_rescued_life(start: BucketState) -> None:
    assert walk(start, E.LOSE, E.TAKE, E.DRAINED)[1:] == [S.LOST, S.DRAINING, S.READY_TO_DELETE]


def test_a_bucket_never_comes_back_to_its_owner_but_by_unfreezing_under_a_new_epoch() -> None:
    into_active = {event for (_, event), to in TRANSITIONS.items() if to is S.ACTIVE}
    assert into_active == {E.UNFREEZE}
    assert {E.UNFREEZE, E.TAKE} == EPOCH_BUMPS


def test_a_new_owner_always_needs_a_new_epoch() -> None:
    assert {event for (_, event), to in TRANSITIONS.items() if to is S.DRAINING} <= EPOCH_BUMPS
