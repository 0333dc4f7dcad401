"""Signals on PostgreSQL and on the simulated master: the same answers, and the same jobs afterwards."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from jobmaster.clock import new_id
from jobmaster.codec import decode_headers, encode_headers
from jobmaster.master.flow import signals as signals_module
from jobmaster.master.master import Master
from jobmaster.model.flow.signal import OutgoingSignal
from jobmaster.model.job import Headers, NewJob, SignalWait
from tests.simulation.comparison.two_masters import TwoMasters, run_on_both

KEYS = st.sampled_from(("a", "ü {x}"))


class Signallers(TwoMasters):
    """Two keys, six jobs, four signals."""

    def __init__(self) -> None:
        super().__init__()
        self.wait(self.sql.execute("DELETE FROM signal"))
        self.signals = [new_id() for _ in range(4)]

    @rule(
        job=st.integers(0, 5),
        key=KEYS,
        seconds=st.sampled_from((None, 0.0, 600.0)),
        run=st.booleans(),
        expires_us=st.sampled_from((None, 1_000_000)),
        late=st.booleans(),
    )
    def wait_for(
        self, job: int, key: str, seconds: float | None, run: bool, expires_us: int | None, late: bool
    ) -> None:
        headers = Headers(signal=SignalWait(key=key, seconds=seconds, run=run), expires_us=expires_us, tags=("x",))
        due_us = time.time_ns() // 1000 + 3_600_000_000 if late else 0
        row = NewJob(self.jobs[job], 3, "default", "handler", b"{}", encode_headers(headers), due_us)
        self.both(lambda master: master.signals.hold_waiting([row]))

    @rule(
        signal=st.integers(0, 3),
        key=KEYS,
        payload=st.sampled_from((b"1", b'{"x":"\\u0000"}')),
        to=st.sampled_from(("all", "one")),
        keep=st.sampled_from((0.0, 600.0)),
    )
    def send(self, signal: int, key: str, payload: bytes, to: str, keep: float) -> None:
        outgoing = OutgoingSignal(self.signals[signal], key, payload, to, keep)
        answers = []

        async def sent(master: Master) -> Any:
            answers.append(await master.signals.send(outgoing, "test"))
            return answers[-1]._replace(kept_until_us=answers[-1].kept_until_us is not None)

        self.both(sent)

    @rule()
    def maintain(self) -> None:
        self.both(lambda master: master.signals.expire_waits(10))
        self.both(lambda master: master.signals.finish_sent(0.0))
        self.both(lambda master: master.signals.end_kept(10))
        self.both(lambda master: master.maintenance.expire_unconfirmed(10))

    @rule(job=st.integers(0, 5))
    def cancel(self, job: int) -> None:
        self.both(lambda master: master.requests.cancel(self.jobs[job], tombstone=None, actor="test"))

    @invariant()
    def both_hold_the_same(self) -> None:
        async def real() -> dict[bytes, Any]:
            return {
                row["id"].bytes: (row["state"], *_received(row["headers"]))
                for row in await self.sql.fetch("SELECT id, state::text AS state, headers FROM job")
            }

        tables = self.server.statements.tables
        assert self.wait(real()) == {row.id: (row.state, *_received(row.headers)) for row in tables.jobs.values()}


def _received(headers: bytes) -> tuple[Any, ...]:
    decoded = decode_headers(headers)
    received = decoded.received
    return decoded.signal, None if received is None else (received.id, received.payload)


@pytest.mark.parametrize("share", [0.4, pytest.param(1.0, marks=pytest.mark.long)])
def test_the_simulated_signals_are_the_real_ones(migrated: str, monkeypatch: pytest.MonkeyPatch, share: float) -> None:
    monkeypatch.setattr(signals_module, "PORTION", 2)
    monkeypatch.setattr(signals_module, "KEPT_MAX", 2)
    run_on_both(Signallers, migrated, examples=25, share=share)


pytestmark = pytest.mark.slow
