"""Workflows on PostgreSQL and on the simulated master: the same steps and the same jobs, in whatever order these end."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from jobmaster.clock import new_id
from jobmaster.codec import decode_headers, encode_headers
from jobmaster.master.master import Master
from jobmaster.model.bucket import Bucket, BucketState
from jobmaster.model.flow.signal import OutgoingSignal
from jobmaster.model.flow.workflow import NewStep, NewWorkflow
from jobmaster.model.ids import AgentId, BucketId, Fence, text
from jobmaster.model.job import FinalRow, Headers, SignalWait
from jobmaster.ports import StepScope
from tests.integration.postgres.fixture import ERROR
from tests.simulation.comparison.two_masters import TwoMasters, run_on_both
from tests.simulation.master.tables import JobRow

_PART = '[[5,1,["x","0"]]]'
_WHOLE = "[[5,1,[]]]"
GRAPHS: list[list[tuple[Any, ...]]] = [
    # number, parents, and what differs from a step on success
    [(1, ()), (2, (1,), "success", _WHOLE), (3, (1,), "success", _PART), (4, (2, 3)), (5, (4,))],
    [(1, ()), (2, (1,)), (3, (1,)), (4, (2, 3)), (5, (1, 2, 3, 4), "failure"), (6, (5,)), (7, (1, 2, 3, 4), "end"),
     (8, (1,), "undo"), (9, (2,), "undo"), (10, (3,), "undo")],
    [(1, ()), (2, (1,), "success", "[]", '{"step":1,"path":[],"in":["1"],"else":false}'),
     (3, (1,), "success", "[]", '{"step":1,"path":[],"in":["1"],"else":true}'), (4, (2, 3)), (5, (4,), "undo")],
    [(1, ()), (2, (1,), "success", _WHOLE, None, SignalWait(key="paid")), (3, (2,)),
     (4, (1,), "success", "[]", None, SignalWait(key="late", seconds=1e-6)),
     (5, (1,), "success", "[]", None, SignalWait(key="late", seconds=1e-6, run=True)), (6, (3, 4, 5), "failure")],
]  # fmt: skip


def _workflow(of: bytes, graph: int) -> NewWorkflow:
    steps = []
    for number, parents, *others in GRAPHS[graph]:
        runs_on, refs, choice, wait = others + ["success", "[]", None, None][len(others) :]
        headers = encode_headers(Headers(workflow=(text(of), number), signal=wait))
        args = b'{"a":}' if refs != "[]" else b"{}"
        steps.append(
            NewStep(
                number, f"s{number}", runs_on, parents, choice, "handler", 3, "default", args, refs, headers, 0, True
            )
        )
    return NewWorkflow(of, "order", 20, tuple(steps))


class Orders(TwoMasters):
    """Workflows whose jobs wait for signals, end, fail and are cancelled."""

    def __init__(self) -> None:
        super().__init__()
        self.wait(self.sql.execute("DELETE FROM workflow"))
        self.wait(self.sql.execute("DELETE FROM signal"))
        self.made = [new_id()[:12] + bytes(4) for _ in GRAPHS]

    @initialize()
    def begin(self) -> None:
        row = Bucket(
            id=self.buckets[0], store="store", lane="default", priority=3, state=BucketState.ACTIVE, epoch=1,
            owner=self.agents[0],
        )  # fmt: skip
        self.both(lambda master: master.buckets.create_buckets([row]))
        for graph in range(len(GRAPHS)):
            self.start(graph, graph)

    @rule(which=st.integers(0, 3), graph=st.integers(0, 3))
    def start(self, which: int, graph: int) -> None:
        self.both(lambda master: master.workflows.start(_workflow(self.made[which], graph)))

    def _jobs(self, state: str) -> list[JobRow]:
        rows = self.server.statements.tables.jobs.values()
        return sorted((row for row in rows if row.state == state), key=lambda row: row.id)

    @rule(count=st.integers(1, 4))
    def onboard(self, count: int) -> None:
        """(Those of one moment come in the order of their ids, so that both take the same ones.)"""
        self.wait(self.sql.execute("UPDATE job SET due_at = 'epoch' WHERE state = 'HELD'"))
        tables = self.server.statements.tables
        for row in self._jobs("HELD"):
            tables.jobs[row.id] = row._replace(due_us=0)
        for _ in range(count):
            held = self._jobs("HELD")
            if held:
                row = held[0]
                self.wait(self.sql.execute(
                    "UPDATE job SET state = 'ASSIGNED', token = token + 1, bucket_id = $2, bucket_epoch = 1 WHERE id = $1",
                    UUID(bytes=row.id), UUID(bytes=self.buckets[0]),
                ))  # fmt: skip
                tables.jobs[row.id] = row._replace(
                    state="ASSIGNED", token=row.token + 1, bucket_id=self.buckets[0], bucket_epoch=1
                )

    @rule(
        picked=st.lists(st.integers(0, 9), min_size=1, max_size=3, unique=True),
        state=st.sampled_from(("SUCCEEDED", "SUCCEEDED", "SUCCEEDED", "FAILED", "EXPIRED")),
        result=st.sampled_from((b"1", b"2", b'{"x":[7]}', b'"' + b"a" * 20 + b'"', None)),
        keep=st.sampled_from((None, "handler", "another")),
    )
    def end(self, picked: list[int], state: str, result: bytes | None, keep: str | None) -> None:
        """``keep``: a handler of the bucket's owner, which takes next steps with the answer."""
        flying = self._jobs("ASSIGNED")
        rows = [
            FinalRow(
                row.id, state, 3, "default", "handler", row.token, self.buckets[0], 1, 0, 0, 0, 5, 7, row.args, row.headers,
                result if state == "SUCCEEDED" else None, None if state == "SUCCEEDED" else ERROR,
            )
            for row in (flying[at] for at in picked if at < len(flying))
        ]  # fmt: skip
        if rows and keep is None:
            self.both(lambda master: master.outcomes.record_final(rows))
        elif rows:
            fence = Fence(BucketId(self.buckets[0]), 1, AgentId(self.agents[0]))

            async def finished(master: Master) -> Any:
                answer = await master.outcomes.finish_steps(fence, rows, StepScope("default", 3, [str(keep)]))
                return answer.written, sorted((each.id, each.token, each.args) for each in answer.entries), answer.more

            self.both(finished)

    @rule(keep=st.sampled_from((0.0, 600.0)), to=st.sampled_from(("all", "one")))
    def send(self, keep: float, to: str) -> None:
        signal = OutgoingSignal(new_id(), "paid", b"1", to, keep)

        async def sent(master: Master) -> Any:
            return (await master.signals.send(signal, "test"))._replace(kept_until_us=None)

        self.both(sent)

    @rule()
    def end_waits(self) -> None:
        self.both(lambda master: master.signals.expire_waits(10))

    @rule(at=st.integers(0, 9))
    def cancel_job(self, at: int) -> None:
        if at < len(held := self._jobs("HELD") + self._jobs("WAITING")):
            self.both(lambda master: master.requests.cancel(held[at].id, tombstone=None, actor="test"))

    @rule(which=st.integers(0, 3))
    def cancel(self, which: int) -> None:
        self.both(lambda master: master.workflows.cancel(self.made[which], "test"))

    @rule(which=st.integers(0, 3))
    def retry(self, which: int) -> None:
        self.both(lambda master: master.workflows.retry(self.made[which], "test"))

    @invariant()
    def both_hold_the_same(self) -> None:
        async def real() -> tuple[dict[Any, Any], ...]:
            jobs = await self.sql.fetch(
                "SELECT id, state::text, token, cancel_requested, args, headers, result FROM job"
            )
            workflows = await self.sql.fetch("SELECT id, state, cancelled, ends FROM workflow")
            steps = await self.sql.fetch(
                "SELECT workflow, step, state, result, job_id, tries, ended, error FROM workflow_step"
            )
            return (
                {
                    row["id"].bytes: (*tuple(row.values())[1:5], *_received(row["headers"]), row["result"])
                    for row in jobs
                },
                {row["id"].bytes: tuple(row.values())[1:] for row in workflows},
                {
                    (row["workflow"].bytes, row["step"]): (
                        *tuple(row.values())[2:4], row["job_id"] and row["job_id"].bytes, *tuple(row.values())[5:]
                    )
                    for row in steps
                },
            )  # fmt: skip

        tables = self.server.statements.tables
        jobs, workflows, steps = self.wait(real())
        assert workflows == {of: (row.state, row.cancelled, row.ends) for of, row in tables.workflows.items()}
        assert steps == {
            (of, step.number): (step.state, step.result, step.job_id, step.tries, step.ended, step.error)
            for of, its in tables.workflow_steps.items()
            for step in its.values()
        }
        assert jobs == {
            row.id: (row.state, row.token, row.cancel_requested, row.args, *_received(row.headers), row.result)
            for row in tables.jobs.values()
        }


def _received(headers: bytes) -> tuple[Any, ...]:
    """Headers, and what was received, without the time."""
    decoded = decode_headers(headers)
    received = decoded.received
    own = msgspec.structs.replace(decoded, received=None)
    return own, None if received is None else (received.id, received.payload)


@pytest.mark.parametrize("share", [0.4, pytest.param(1.0, marks=pytest.mark.long)])
def test_the_simulated_workflows_are_the_real_ones(migrated: str, share: float) -> None:
    run_on_both(Orders, migrated, examples=25, share=share)


pytestmark = pytest.mark.slow
