"""The master: one object that answers every port of the master database."""

from __future__ import annotations

from typing import NamedTuple

from jobmaster.master.buckets import Buckets
from jobmaster.master.connection import Calls, Connections, Opener
from jobmaster.master.intake import Intake
from jobmaster.master.maintenance import Upkeep
from jobmaster.master.members import Members
from jobmaster.master.migrate import check_schema
from jobmaster.master.onboarding import Onboarding
from jobmaster.master.outcomes import Outcomes
from jobmaster.master.queries import Queries
from jobmaster.master.rescue import Rescue
from jobmaster.master.stores import Stores
from jobmaster.model.errors import SchemaMismatch
from jobmaster.settings.model import MasterSettings


class ClusterRow(NamedTuple):
    """Which cluster a schema belongs to."""

    name: str
    uid: bytes
    """Random per creation; agent stores remember it."""


class Master(Intake, Outcomes, Onboarding, Members, Buckets, Rescue, Upkeep, Stores, Queries):
    """PostgreSQL behind the ports of ``jobmaster.ports``.

    Three sets of connections, so that neither a heartbeat nor a takeover ever waits behind data: ``data``
    (``pool_size``), ``control`` (1), ``heartbeat`` (1). Each opens when it is first needed.
    """

    def __init__(self, opener: Opener, pool_size: int, cluster: ClusterRow) -> None:
        self.cluster = cluster
        self._schema = opener.schema
        self._cursors = {}
        self._pools = [Connections(opener, pool_size), *(Connections(opener, 1, plan_once=True) for _ in range(2))]
        self._data, self._control, self._heartbeat = map(Calls, self._pools)

    @classmethod
    async def connect(cls, *, dsn: str, schema: str, settings: MasterSettings, application_name: str) -> Master:
        """Connect, and refuse a schema that is not this program's.

        Args:
            dsn: ``postgresql://`` URL.
            schema: PostgreSQL schema of the cluster.
            application_name: an agent gives its id as text: its rescuer ends the backends of that name.

        Raises:
            Unavailable: the server cannot be reached.
            Refused: it does not accept the user, or the database does not exist.
            SchemaMismatch: the schema is missing, too old or too new.
        """
        opener = Opener(dsn, schema, settings, application_name)
        probe = Connections(opener, 1)
        try:
            calls = Calls(probe)
            await check_schema(calls, schema)
            rows = await calls.ask("schema/cluster")
        finally:
            await probe.close()
        if not rows:
            raise SchemaMismatch(f"schema {schema} belongs to no cluster", hint="run `jobmaster db migrate`")
        return cls(opener, settings.pool_size, ClusterRow(rows[0]["name"], rows[0]["uid"]))

    @property
    def calls(self) -> Calls:
        """Any statement by its name, on the data connections: for rooms that have statements of their own here."""
        return self._data

    async def close(self) -> None:
        """Close every connection; bounded, cuts what does not close in time."""
        for pool in self._pools:
            await pool.close()
