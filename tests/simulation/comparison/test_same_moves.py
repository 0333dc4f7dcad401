"""The move of a cluster on PostgreSQL and on the simulated master: the same answers, and the same jobs afterwards."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from jobmaster.clock import new_id
from jobmaster.codec import decode_headers, encode_headers
from jobmaster.master.master import Master
from jobmaster.model.bucket import Bucket, BucketState
from jobmaster.model.errors import Conflict
from jobmaster.model.flow.signal import OutgoingSignal
from jobmaster.model.job import Headers, NewJob, SignalWait
from tests.simulation.comparison.two_masters import TwoMasters, run_on_both

MODES = st.sampled_from(("active", "migrating", "archived"))
JOBS = st.lists(st.integers(0, 5), unique=True, max_size=4)
PAST = "UPDATE cluster SET mode_at = mode_at - interval '1 h'"


class Movers(TwoMasters):
    """Six jobs, three buckets, and two targets. The master is the target of its own rows: they are removed, and taken."""

    def __init__(self) -> None:
        self.wait(self.sql.execute("DELETE FROM signal; DELETE FROM cluster_move; DELETE FROM passed_signal"))
        super().__init__()
        self.targets = [new_id() for _ in range(2)]
        self.signals = [new_id() for _ in range(3)]

    def statement(self, name: str, *values: Any) -> list[dict[str, Any]] | type[Conflict]:
        """The same statement on both sides; rows by column."""

        async def asked(master: Master) -> Any:
            try:
                rows = await master.statements.write(name, *values)
            except Conflict:
                return Conflict
            # Sizes: the server writes JSON with spaces.
            return [{column: value for column, value in row.items() if column != "bytes"} for row in rows]

        return self.both(asked)  # type: ignore[no-any-return]

    def ids(self, jobs: list[int]) -> list[bytes]:
        return [self.jobs[job] for job in jobs]

    @property
    def _takes_jobs(self) -> bool:
        return self.server.statements.tables.mode != "archived"

    @invariant()
    def both_hold_the_same(self) -> None:
        tables = self.server.statements.tables
        assert self.wait(self._there()) == (
            {row.id: (row.state, row.token, _received(row.headers)) for row in tables.jobs.values()},
            {row.id: row.state for row in tables.buckets.values()},
            tables.mode,
            None if tables.move is None else tuple(tables.move),
            set(tables.passed_signals),
        )

    async def _there(self) -> tuple[Any, ...]:
        jobs = await self.sql.fetch("SELECT id, state::text, token, headers FROM job")
        buckets = await self.sql.fetch("SELECT id, state::text FROM bucket")
        move = await self.sql.fetchrow("SELECT target, target_name, page, moved FROM cluster_move")
        return (
            {row["id"].bytes: (row["state"], row["token"], _received(row["headers"])) for row in jobs},
            {row["id"].bytes: row["state"] for row in buckets},
            await self.sql.fetchval("SELECT mode FROM cluster"),
            None if move is None else (move[0].bytes, move[1], tuple(each.bytes for each in move[2]), move[3]),
            {row["id"].bytes for row in await self.sql.fetch("SELECT id FROM passed_signal")},
        )

    # ------------------------------------------------------------ the cluster

    @rule(mode=MODES, past=st.booleans())
    def set_mode(self, mode: str, past: bool) -> None:
        tables = self.server.statements.tables
        self.statement("cluster/set_mode", mode, "ann", "")
        if past:  # the longest lease is over since
            self.wait(self.sql.execute(PAST))
            tables.mode_us -= 3_600_000_000

    @rule(bucket=st.integers(0, 2))
    def open(self, bucket: int) -> None:
        row = Bucket(
            id=self.buckets[bucket], store="store", lane="default", priority=3, state=BucketState.ACTIVE, epoch=1,
            owner=self.agents[0],
        )  # fmt: skip
        self.both(lambda master: master.buckets.create_buckets([row]))

    @rule(job=st.integers(0, 5))
    def hold(self, job: int) -> None:
        if self._takes_jobs:
            row = NewJob(self.jobs[job], 3, "default", "handler", b"{}", b"", 0)
            self.both(lambda master: master.intake.insert_held([row]))

    @rule(job=st.integers(0, 5), key=st.sampled_from(("a", "b")))
    def wait_for(self, job: int, key: str) -> None:
        if self._takes_jobs:
            headers = encode_headers(Headers(signal=SignalWait(key=key)))
            row = NewJob(self.jobs[job], 3, "default", "handler", b"{}", headers, 0)
            self.both(lambda master: master.signals.hold_waiting([row]))

    @rule(signal=st.integers(0, 2), key=st.sampled_from(("a", "b")), to=st.sampled_from(("all", "one")))
    def keep(self, signal: int, key: str, to: str) -> None:
        if self._takes_jobs:
            outgoing = OutgoingSignal(self.signals[signal], key, b"1", to, 600.0)

            async def sent(master: Master) -> Any:
                answer = await master.signals.send(outgoing, "ann")
                return answer._replace(kept_until_us=answer.kept_until_us is not None)

            self.both(sent)

    @rule(job=st.integers(0, 5))
    def cancel(self, job: int) -> None:
        self.both(lambda master: master.requests.cancel(self.jobs[job], tombstone=None, actor="ann"))

    # ------------------------------------------------------------ the move

    @rule(number=st.integers(0, 1))
    def begin(self, number: int) -> None:
        self.statement("cluster/begin_move", self.targets[number], f"target {number}")

    @rule(jobs=JOBS)
    def note(self, jobs: list[int]) -> None:
        self.statement("cluster/note_page", self.ids(jobs))

    @rule()
    def look(self) -> None:
        self.statement("cluster/left")
        self.statement("cluster/choose_jobs", 10)

    @rule(jobs=JOBS)
    def move(self, jobs: list[int]) -> None:
        found = self.statement("cluster/lock_page", self.ids(jobs))
        assert isinstance(found, list)
        self.statement("cluster/mark_moved", self.ids(jobs))

    @rule(jobs=JOBS, gone=st.booleans())
    def take(self, jobs: list[int], gone: bool) -> None:
        """Rows come from another master; without ``gone`` they are there already."""
        if not self._takes_jobs:
            return
        ids, tables = self.ids(jobs), self.server.statements.tables
        real = self.wait(self._page(self.real, ids))
        simulated = self.wait(self._page(self.simulated, ids))
        if gone:
            self.wait(
                self.sql.execute("DELETE FROM job WHERE id = ANY ($1::uuid[])", [UUID(bytes=each) for each in ids])
            )
            for job_id in ids:
                tables.jobs.pop(job_id, None)
                tables.waiting.pop(job_id, None)
        taken = self.wait(self.real.statements.write("cluster/take_rows", "job", real))[0]["taken"]
        assert taken == self.wait(self.simulated.statements.write("cluster/take_rows", "job", simulated))[0]["taken"]
        keys = ["a", "b"]
        self.both(lambda master: _silently(master, "cluster/lock_signals", keys))
        self.both(lambda master: _silently(master, "cluster/receive_signals", sorted(ids), keys))

    async def _page(self, master: Master, ids: list[bytes]) -> list[Any]:
        rows = await master.statements.write("cluster/read_page", ids)
        return [row["row_text"] for row in rows if row["table_name"] == "job"]

    @rule()
    def pass_signals(self) -> None:
        self.statement("cluster/note_signals")
        self.both(_oldest_signal)

    @rule(signal=st.integers(0, 2))
    def forget(self, signal: int) -> None:
        self.statement("cluster/forget_signal", self.signals[signal])


async def _silently(master: Master, name: str, *values: Any) -> None:
    await master.statements.write(name, *values)


def _received(headers: bytes) -> str | None:
    received = decode_headers(headers).received
    return None if received is None else received.id


async def _oldest_signal(master: Master) -> Any:
    rows = await master.statements.write("cluster/noted_signal")
    return [(row["id"], row["key"], row["recipients"], row["payload"], row["actor"]) for row in rows]


@pytest.mark.parametrize("share", [0.4, pytest.param(1.0, marks=pytest.mark.long)])
def test_the_simulated_move_of_a_cluster_is_the_real_one(migrated: str, share: float) -> None:
    run_on_both(Movers, migrated, examples=25, share=share)


pytestmark = pytest.mark.slow
