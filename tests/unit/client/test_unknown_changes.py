"""A change of a waiting job whose first attempt had no answer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from jobmaster.client.jobs.changes import JobChanger
from jobmaster.model.errors import OutcomeUnknown, Unavailable
from jobmaster.model.job_change import NewValues


async def _change(errors: list[Exception]) -> None:
    async def change_held(*_: Any) -> None:
        raise errors.pop(0)

    master = SimpleNamespace(changes=SimpleNamespace(change_held=change_held))
    clock = SimpleNamespace(boottime=lambda: 0.0)
    nothing = cast("Any", None)
    changer = JobChanger(cast("Any", master), {}, nothing, nothing, nothing, cast("Any", clock))
    await changer.change(b"j" * 16, None, NewValues(1, None, None), "client")


async def test_a_master_that_is_gone_at_the_next_attempt_does_not_make_the_outcome_known() -> None:
    first = OutcomeUnknown("no answer")
    with pytest.raises(OutcomeUnknown) as raised:
        await _change([first, Unavailable("cannot be reached")])
    assert raised.value is first


async def test_a_master_that_is_gone_from_the_beginning_is_unavailable() -> None:
    with pytest.raises(Unavailable) as raised:
        await _change([Unavailable("cannot be reached")])
    assert not isinstance(raised.value, OutcomeUnknown)
