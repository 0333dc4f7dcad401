"""Hints to agents in which jobs wait for permits that were freed here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from jobmaster.model.errors import Unavailable
from jobmaster.model.flow.limit import LimitKey
from jobmaster.telemetry import Telemetry
from jobmaster_agents.execute import permit_hints
from jobmaster_agents.execute.permit_hints import IDLE_SECONDS, PermitHints

ME = b"m" * 16


class Servers:
    """A master in which two agents wait, and two stores, one of which does not answer."""

    def __init__(self) -> None:
        self.asked: list[Sequence[LimitKey]] = []
        self.hinted: list[bytes] = []
        self.silent: list[str] = []
        self.alone = False
        self.down = False

    async def waiting_elsewhere(self, agent_id: bytes, limits: Sequence[LimitKey]) -> list[tuple[bytes, str]]:
        assert agent_id == ME
        if self.down:
            raise Unavailable("the master is away")
        self.asked.append(limits)
        return [(b"one", "silent"), (b"two", "good"), (b"three", "unknown")]

    async def hint(self, bucket_id: bytes) -> None:
        if bucket_id == b"one":
            raise Unavailable("the store is away")
        self.hinted.append(bucket_id)

    def answers(self, store: str) -> bool:
        return True

    def failed(self, store: str, error: Exception) -> None:
        self.silent.append(store)


@pytest.fixture
def servers() -> Servers:
    return Servers()


@pytest.fixture
def hints(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> PermitHints:
    monkeypatch.setattr(permit_hints, "GATHER_SECONDS", 0.0)
    stores: Any = {"silent": servers, "good": servers}
    reachability: Any = servers
    return PermitHints(ME, servers, stores, reachability, lambda: servers.alone, Telemetry())


async def test_agents_that_wait_get_a_hint_through_their_stores(servers: Servers, hints: PermitHints) -> None:
    hints.freed([("b", ""), ("a", "x")])
    hints.freed([("b", "")])
    assert hints.kicked.is_set()
    assert await hints.tick() == IDLE_SECONDS
    assert servers.asked == [[("a", "x"), ("b", "")]]
    assert servers.hinted == [b"two"], "the silent store does not stop the others"
    assert servers.silent == ["silent"]
    assert await hints.tick() == IDLE_SECONDS
    assert len(servers.asked) == 1, "nothing was freed since"


async def test_the_only_agent_asks_for_nothing(servers: Servers, hints: PermitHints) -> None:
    servers.alone = True
    hints.freed([("a", "")])
    await hints.tick()
    assert servers.asked == []


async def test_what_gathers_is_bounded_and_a_look_that_failed_is_not_repeated(
    servers: Servers, hints: PermitHints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agents that wait ask now and then."""
    monkeypatch.setattr(permit_hints, "_LIMITS_MAX", 3)
    for number in range(9):
        hints.freed([("a", str(number))])
    servers.down = True
    with pytest.raises(Unavailable):
        await hints.tick()
    servers.down = False
    await hints.tick()
    assert servers.asked == []
