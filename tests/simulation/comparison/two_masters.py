"""The same call on a real and on a simulated master: the same answer, and the same rows afterwards."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar
from uuid import UUID

import asyncpg
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, run_state_machine_as_test

from jobmaster.clock import new_id
from jobmaster.master.master import Master
from jobmaster.model.agent import Agent, AgentState
from jobmaster.model.errors import ValueRefused
from jobmaster.model.flow.uniqueness import UniqueAnswer
from jobmaster.model.ids import AgentId, BucketId, Fence
from jobmaster.model.job_change import ChangedRow
from jobmaster.settings.model import MasterSettings
from tests.integration.postgres.fixture import SCHEMA
from tests.simulation.comparison.direct_calls import DirectMaster, master_server
from tests.simulation.master.sim_master import MasterServer

TABLES = (
    "job",
    "attempt",
    "bucket",
    "bucket_event",
    "agent",
    "lease",
    "idempotency",
    "unique_key",
    "quarantine",
    "batch_note",
    "operator_log",
    "pause",
    "named_lock",
    "once_action",
    "once_attempt",
    "breaker",
    "breaker_handler",
    "breaker_result",
    "breaker_trial",
)
ACTIVE = (
    "UPDATE cluster SET mode = 'active'; DROP TRIGGER IF EXISTS refuse_archived ON job;"
    "DROP TRIGGER IF EXISTS refuse_archived ON signal"
)
"""The database is shared with other tests, and rules of a move change the mode of its cluster."""
_WINDOW = re.compile(rb'"unique_(?:from|until)_us":\d+,?')
FAR_US = 1_000_000_000_000
"""How far ahead the far one of the limits lies that the rules give."""
NEAR_US = 120_000_000
"""Times that two clocks gave within one run."""
Call = Callable[[Master], Coroutine[Any, Any, Any]]


class TwoMasters(RuleBasedStateMachine):
    """Three agents, three buckets, six jobs; whatever is chosen is done to both."""

    runner: ClassVar[asyncio.Runner]
    real: ClassVar[Master]
    sql: ClassVar[asyncpg.Connection[asyncpg.Record]]

    def __init__(self) -> None:
        super().__init__()
        self.wait(self.sql.execute(";".join(f"DELETE FROM {table}" for table in TABLES)))
        self.wait(self.sql.execute("UPDATE pause_version SET version = 0"))
        self.wait(self.sql.execute(ACTIVE))
        self.real.onboarding._positions.clear()
        self.server: MasterServer = master_server(lambda: time.time_ns() // 1000)
        self.simulated = DirectMaster(self.server)
        self.real.__dict__["fences"] = {}
        self.real.__dict__.pop("map", None)
        self.agents = [new_id() for _ in range(3)]
        self.buckets = [new_id() for _ in range(3)]
        self.jobs = [new_id() for _ in range(6)]
        for agent_id in self.agents:
            row = self.agent_row(agent_id)
            self.both(lambda master, row=row: master.members.register(row, ["default"], []))  # type: ignore[misc]

    def wait(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(coroutine)

    def both(self, call: Call) -> Any:
        """The same call on both sides, with the same answer."""
        mine = self._answer(call(self.real))
        simulated = self._answer(call(self.simulated))
        assert _plain(mine) == _plain(simulated)
        return mine

    def _answer(self, call: Coroutine[Any, Any, Any]) -> Any:
        """Refused values are an answer, too: which error it is, and not its text."""
        try:
            return self.wait(call)
        except ValueRefused:
            return ValueRefused

    def agent_row(self, agent_id: bytes) -> Agent:
        return Agent(
            id=agent_id, name="agent", host="host", pid=1, version="0", mode="full", store="store", weight=1,
            state=AgentState.ACTIVE, lease_us=0, lease_seconds=3600.0, started_us=0,
        )  # fmt: skip

    def fence(self, bucket: int, epoch: int | None, agent: int) -> Fence:
        """Of a bucket; ``epoch`` ``None``: with the epoch and owner that stand."""
        bucket_id = BucketId(self.buckets[bucket])
        there = self.server.statements.tables.buckets.get(bucket_id)
        if epoch is None and there is not None:
            return Fence(bucket_id, there.epoch, AgentId(there.owner))
        return Fence(bucket_id, epoch or 1, AgentId(self.agents[agent]))

    def token(self, job: int, step: int) -> int:
        """The token that stands, or one beside it."""
        there = self.server.statements.tables.jobs.get(self.jobs[job])
        return max((there.token if there is not None else 1) + step, 1)

    # ------------------------------------------------------------ the same rows

    @invariant()
    def both_hold_the_same(self) -> None:
        tables = self.server.statements.tables
        now_us = time.time_ns() // 1000
        assert self.wait(self._real_rows(now_us)) == {
            "job": {
                row.id: (
                    *row[1:11],
                    _rough(row.due_us, now_us),
                    _rough(row.expires_us, now_us),
                    *map(_timeless, row[14:]),
                )
                for row in tables.jobs.values()
            },
            "attempt": {key: tuple(line) for key, line in tables.attempts.items()},
            "bucket": {
                b.id: (b.store, b.lane, b.priority, b.state, b.epoch, b.owner, b.former_owner)
                for b in tables.buckets.values()
            },
            "events": [(e.bucket_id, e.before, e.after, e.epoch, e.actor or None) for e in tables.events],
            "agent": {a.id: (a.state, a.drain_requested, a.process_ended) for a in tables.agents.values()},
            "leader_lease": None if tables.leader_lease is None else tuple(tables.leader_lease)[:3],
            "locks": {row.name: (row.holder, row.label) for row in tables.locks.values()},
            "once": {key: label for key, (_, label) in tables.once.items()},
            "once attempts": {
                key: (row.lock_name, row.label, row.failures, row.error) for key, row in tables.once_attempts.items()
            },
            "keys": {key: tuple(held) for key, held in tables.keys.items()},
            "unique_keys": {
                key: (held.job_id, held.term, _rough(held.until_us, now_us)) for key, held in tables.unique_keys.items()
            },
            "quarantine": dict(tables.quarantine),
        }  # fmt: skip

    async def _real_rows(self, now_us: int) -> dict[str, Any]:
        sql = self.sql
        jobs = await sql.fetch(
            "SELECT id, state::text, priority, lane, handler, token, bucket_id, bucket_epoch, attempt, rescues,"
            " cancel_requested, (extract(epoch FROM due_at) * 1000000)::bigint,"
            " (extract(epoch FROM expires_at) * 1000000)::bigint, args, headers, result, error FROM job"
        )
        attempts = await sql.fetch("SELECT job_id, token, bucket_id, bucket_epoch, outcome, refused_count FROM attempt")
        buckets = await sql.fetch(
            "SELECT id, store, lane, priority, state::text, epoch, owner, former_owner FROM bucket"
        )
        events = await sql.fetch(
            "SELECT bucket_id, from_state::text, to_state::text, epoch, actor FROM bucket_event ORDER BY seq"
        )
        agents = await sql.fetch("SELECT id, state::text, drain_requested, process_ended FROM agent")
        leader_lease = await sql.fetchrow("SELECT owner, weight, epoch FROM lease WHERE name = 'leader'")
        aside = await sql.fetch("SELECT job_id, reason, bucket_id, entry FROM quarantine")
        locks = await sql.fetch("SELECT name, holder, label FROM named_lock")
        once = await sql.fetch("SELECT name, version, label FROM once_action")
        tried = await sql.fetch("SELECT name, version, lock_name, label, failures, error FROM once_attempt")
        keys = await sql.fetch("SELECT scope, key, job_id, digest FROM idempotency")
        uniques = await sql.fetch("SELECT handler, key, job_id, term, to_us(until) FROM unique_key")
        rough = [
            [*row[:11], _rough(row[11], now_us), _rough(row[12], now_us), *map(_timeless, row[13:])]
            for row in map(_values, jobs)
        ]
        return {
            "job": {row[0]: tuple(row[1:]) for row in rough},
            "attempt": {tuple(row[:4]): tuple(row[4:]) for row in map(_values, attempts)},
            "bucket": {row[0]: tuple(row[1:]) for row in map(_values, buckets)},
            "events": [tuple(row) for row in map(_values, events)],
            "agent": {row[0]: tuple(row[1:]) for row in map(_values, agents)},
            "leader_lease": None if leader_lease is None else tuple(_values(leader_lease)),
            "locks": {row[0]: tuple(row[1:]) for row in map(_values, locks)},
            "once": {tuple(row[:2]): row[2] for row in map(_values, once)},
            "once attempts": {tuple(row[:2]): tuple(row[2:]) for row in map(_values, tried)},
            "keys": {tuple(row[:2]): tuple(row[2:]) for row in map(_values, keys)},
            "unique_keys": {tuple(row[:2]): (*row[2:4], _rough(row[4], now_us)) for row in map(_values, uniques)},
            "quarantine": {tuple(row[:2]): tuple(row[2:]) for row in map(_values, aside)},
        }


def run_on_both(machine: type[TwoMasters], dsn: str, *, examples: int, steps: int = 25, share: float = 1.0) -> None:
    """Play the rules of ``machine`` on a real master and a simulated one, the same examples in each run.

    Args:
        dsn: a migrated database; its schema is ``SCHEMA``.
        examples: how many sequences of rules are played.
        steps: rules in a sequence, at most.
        share: of the examples, the first ones.
    """
    with asyncio.Runner() as runner:
        sql = runner.run(asyncpg.connect(dsn, server_settings={"search_path": SCHEMA}))
        real = runner.run(
            Master.connect(dsn=dsn, schema=SCHEMA, settings=MasterSettings(), application_name="contract")
        )
        try:
            run_state_machine_as_test(
                type("Machine", (machine,), {"runner": runner, "real": real, "sql": sql}),
                settings=settings(
                    max_examples=round(examples * share),
                    stateful_step_count=steps,
                    deadline=None,
                    derandomize=True,
                    suppress_health_check=list(HealthCheck),
                ),
            )
        finally:
            runner.run(sql.execute(ACTIVE))
            runner.run(real.close())
            runner.run(sql.close())


def _values(row: Any) -> list[Any]:
    return [value.bytes if isinstance(value, UUID) else value for value in row]


def _rough(us: int | None, now_us: int) -> int | str | None:
    """A time; one that the server's own clock gave is only near, and so is one that it has counted from there."""
    if us is None:
        return None
    return next((name for name, ahead in (("now", 0), ("far", FAR_US)) if abs(us - now_us - ahead) < NEAR_US), us)


def _timeless(value: Any) -> Any:
    """Headers without the times of a window, which the server's own clock gave."""
    return _WINDOW.sub(rb"", value) if isinstance(value, bytes) else value


def _plain(answer: Any) -> Any:
    """An answer without the times that two clocks gave."""
    if isinstance(answer, list):
        return [_plain(each) for each in answer]
    if hasattr(answer, "changed_us"):
        fields = {name: getattr(answer, name) for name in getattr(answer, "__struct_fields__", ()) or answer._fields}
        fields.pop("changed_us")
        for name in ("due_us", "waited_us", "ran_us"):
            if name in fields:
                fields[name] = _rough(fields[name], time.time_ns() // 1000) if name == "due_us" else None
        return fields
    if isinstance(answer, UniqueAnswer):
        return answer._replace(limit_us=bool(answer.limit_us))
    if isinstance(answer, ChangedRow):
        return (*answer[:1], _rough(answer.due_us, time.time_ns() // 1000), *answer[2:])
    if hasattr(answer, "now_us"):
        obeyed = answer.pauses_obeyed and answer.pauses_obeyed == answer.pauses  # versions are times, too
        return answer._replace(now_us=answer.now_us is not None, pauses=bool(answer.pauses), pauses_obeyed=obeyed)
    if hasattr(answer, "entries"):
        now_us = time.time_ns() // 1000
        rows = [(e.id, e.token, e.handler, _rough(e.due_us, now_us), e.attempt, e.rescues) for e in answer.entries]
        return answer._replace(entries=sorted(rows))  # which rows is promised; their order is that of PostgreSQL's plan
    return answer
