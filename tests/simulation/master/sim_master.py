"""The product's own ``Master`` on a simulated server: everything above the SQL text runs as it is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import cache
from typing import Any, TypeVar, cast

import asyncpg

from jobmaster.master.driver.connection import StatementRunner
from jobmaster.master.master import Master
from jobmaster.model.cluster import ClusterRow
from jobmaster.model.errors import Unavailable
from tests.simulation.master.binary_copy import rows_of
from tests.simulation.master.cluster_statements import ClusterStatements
from tests.simulation.master.tables import Record, Snapshot
from tests.simulation.runtime.event_loop import SimLoop
from tests.simulation.runtime.network import Network, Server

_T = TypeVar("_T")
CLUSTER_UID = b"simulated-cluste"
_CARRIERS = frozenset(
    {
        "outcomes/record_final",
        "outcomes/finish_steps",
        "outcomes/persist",
        "outcomes/hold",
        "outcomes/retry_here",
        "rescue/rescue_page",
    }
)
"""Statements of agents that carry what jobs carry."""


class MasterServer(Server):
    """The server: statements by name."""

    def __init__(self, name: str, loop: SimLoop, statements: ClusterStatements) -> None:
        super().__init__(name, loop)
        self.statements = statements
        self.statement_bytes: int | None = None
        """Payload of several rows above which a statement of an agent does not end in its time."""

    def snapshot(self) -> Snapshot:
        """What a statement that begins now sees without locks."""
        tables = self.statements.tables
        return Snapshot(
            tables.buckets.copy(),
            tables.agents.copy(),
            tables.schedules.copy(),
            tables.fires.copy(),
            tables.signals.copy(),
            tables.waiting.copy(),
            tables.workflow_steps.copy(),
            self.statements.taken_permits() if "permit lock" in self.statements.without else {},
            tables.breakers.copy(),
            tables.breaker_results.copy(),
            tables.breaker_trials.copy(),
            len(self.statements.audit.breakers.reports),
            tables.unique_keys.copy() if "unique lock" in self.statements.without else {},
        )

    def execute(self, name: str, old: Snapshot, args: tuple[Any, ...]) -> list[Record]:
        """One statement, all at once."""
        answer = cast(list[Record], getattr(self.statements, _twin(name))(old, *args))
        self.statements.run_triggers(name, old)
        return answer

    def terminate(self, agents: set[bytes]) -> None:
        """The sessions of these agents end; what they had begun has no effect."""
        for sent in list(self.waiting):
            if sent.sender is not None and sent.sender.agent_id in agents:
                self.drop(sent)


@cache
def _twin(name: str) -> str:
    return name.replace("/", "_")


@cache
def name_of(text: str) -> str:
    """The statement's name, which stands in its first line."""
    return text.split(" ", 3)[2]


_NOTHING = Snapshot({}, {})


class SimConnection:
    """What the master's methods want of a connection."""

    def __init__(self, server: MasterServer) -> None:
        self._server = server
        self.old = _NOTHING

    def see(self) -> None:
        """The statement begins."""
        self.old = self._server.snapshot()

    async def fetch(self, text: str, *args: Any) -> list[Record]:
        name = name_of(text)
        if name in _CARRIERS and self._server.statement_bytes is not None:
            columns = [arg for arg in args if isinstance(arg, list)]
            self._be_in_time(name, len(columns[0]), sum(len(v) for c in columns for v in c if isinstance(v, bytes)))
        return self._server.execute(name, self.old, args)

    def _be_in_time(self, what: str, rows: int, size: int) -> None:
        """Cancelled without an effect, whatever is sent again as large as this."""
        bytes_max = self._server.statement_bytes
        if bytes_max is not None and rows > 1 and size > bytes_max:
            self._server.statements.hits["statement timed out"] += 1
            raise Unavailable(f"the master gave up {what}, nothing was changed: statement timeout", timed_out=True)

    async def copy_to_table(self, table: str, *, source: Any, columns: tuple[str, ...], format: str) -> str:  # noqa: A002
        body = b"".join([piece async for piece in source])
        records = rows_of(body, columns)
        self._be_in_time("copy_final", len(records), len(body))
        written = self._server.statements.copy(records)
        self._server.statements.run_triggers("copy_final", self.old)
        if written < 0:
            raise asyncpg.UniqueViolationError("duplicate key")
        return f"COPY {written}"


class SimCalls(StatementRunner):
    """Statements by name over a network."""

    def __init__(self, server: MasterServer, network: Network) -> None:
        self._server = server
        self._network = network

    async def read(self, name: str, *args: Any) -> list[Any]:
        return await self._statement(name, args, writes=False, ids=())

    async def write(self, name: str, *args: Any, ids: Sequence[bytes] = ()) -> list[Any]:
        return await self._statement(name, args, writes=True, ids=ids)

    async def _statement(self, name: str, args: tuple[Any, ...], *, writes: bool, ids: Sequence[bytes]) -> list[Any]:
        server = self._server
        connection = SimConnection(server)
        answer: list[Any] = await self._network.call(
            name, lambda: server.execute(name, connection.old, args), writes=writes, ids=ids, sees=connection.see
        )
        return answer

    async def run(
        self,
        what: str,
        work: Callable[[Any], Awaitable[_T]],
        *,
        writes: bool = True,
        ids: Sequence[bytes] = (),
        raw: tuple[type[Exception], ...] = (),
    ) -> _T:
        connection = SimConnection(self._server)

        def effect() -> Any:
            try:
                return _at_once(cast("Coroutine[Any, Any, _T]", work(connection)))
            except raw as error:
                return _Raw(error)

        answer = await self._network.call(what, effect, writes=writes, ids=ids, sees=connection.see)
        if isinstance(answer, _Raw):
            raise answer.error
        return cast(_T, answer)

    async def in_transaction(self, what: str, work: Callable[[Any], Awaitable[_T]]) -> _T:
        return await self.run(what, work)


class _Raw:
    def __init__(self, error: Exception) -> None:
        self.error = error


def _at_once(work: Coroutine[Any, Any, _T]) -> _T:
    """Result of a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as end:
        return cast(_T, end.value)
    raise AssertionError("a statement of the simulated master waits")


class SimMaster(Master):
    """``Master`` without a database."""

    def __init__(self, server: MasterServer, network: Network) -> None:
        calls = SimCalls(server, network)
        super().__init__(ClusterRow("sim", CLUSTER_UID), "sim", calls, calls, calls)
