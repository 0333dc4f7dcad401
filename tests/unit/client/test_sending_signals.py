"""A signal that takes several calls of the master, and what its sender learns when one of them fails."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from jobmaster.client.signals.signals import Signals
from jobmaster.clock import new_id
from jobmaster.model.errors import OutcomeUnknown, Unavailable
from jobmaster.model.flow.signal import OutgoingSignal, SignalStatus, SignalStep
from jobmaster.settings.model import Limits

PART = SignalStep(SignalStatus.SENT, 5_000, False, None)
LAST = SignalStep(SignalStatus.SENT, 7_000, True, None)


class Master:
    """Gives these answers."""

    def __init__(self, answers: Sequence[SignalStep | Exception]) -> None:
        self.answers = list(answers)
        self.sent: list[OutgoingSignal] = []

    async def send(self, signal: OutgoingSignal, actor: str) -> SignalStep:
        self.sent.append(signal)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def signals(master: Master) -> Signals:
    return Signals(cast("Any", master), Limits(), lambda: None)


async def test_portions_are_asked_for_under_one_id_until_the_last() -> None:
    master = Master([PART, OutcomeUnknown("lost"), LAST])
    sent = await signals(master).send("k", 1)
    assert (sent.delivered, sent.repeated) == (7_000, False)
    assert len({signal.id for signal in master.sent}) == 1


async def test_a_part_of_a_signal_is_no_signal_that_was_not_sent() -> None:
    master, own = Master([PART, Unavailable("the master is away")]), new_id()
    with pytest.raises(OutcomeUnknown, match="has reached 5000 jobs so far: the master is away") as caught:
        await signals(master).send("k", 1, signal_id=own)
    assert caught.value.id_bytes == (own,)


@pytest.mark.parametrize(("blocked", "said"), [(False, "^no$"), (True, "signal 'k': another open transaction")])
async def test_a_signal_that_was_not_sent_says_why(blocked: bool, said: str) -> None:
    with pytest.raises(Unavailable, match=said) as caught:
        await signals(Master([Unavailable("no", blocked=blocked)])).send("k", 1)
    assert not isinstance(caught.value, OutcomeUnknown)
