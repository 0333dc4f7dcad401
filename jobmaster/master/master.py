"""The master: PostgreSQL, in parts that implement one port each."""

from __future__ import annotations

from jobmaster.master.buckets import Buckets
from jobmaster.master.changes import Changes
from jobmaster.master.driver.connection import ConnectionFactory, ConnectionPool, SpareConnections, StatementRunner
from jobmaster.master.driver.transaction_pool import TransactionPool
from jobmaster.master.due_notices import DueNotices
from jobmaster.master.flow.batches import Batches
from jobmaster.master.flow.breakers import Breakers
from jobmaster.master.flow.bulk_operations import BulkOperations
from jobmaster.master.flow.limits import Limits
from jobmaster.master.flow.signals import Signals
from jobmaster.master.flow.uniqueness import Uniqueness
from jobmaster.master.flow.workflows import Workflows
from jobmaster.master.history.events import Events
from jobmaster.master.history.job_logs import JobLogs
from jobmaster.master.inspection.queries import InspectionQueries
from jobmaster.master.intake import Intake
from jobmaster.master.leadership import Leadership
from jobmaster.master.locks import Locks
from jobmaster.master.maintenance import Maintenance
from jobmaster.master.members import Members
from jobmaster.master.onboarding import Onboarding
from jobmaster.master.outcomes import Outcomes
from jobmaster.master.pauses import Pauses
from jobmaster.master.queries import Queries
from jobmaster.master.requests import Requests
from jobmaster.master.rescue import Rescue
from jobmaster.master.schedules import Schedules
from jobmaster.master.schema.migrate import check_schema
from jobmaster.master.stores import Stores
from jobmaster.master.unserved_jobs import UnservedJobs
from jobmaster.model.cluster import ClusterRow
from jobmaster.model.errors import SchemaMismatch
from jobmaster.passwords import PasswordFunction
from jobmaster.settings.model import MasterSettings


class Master:
    """PostgreSQL behind the ports of ``jobmaster.ports``, one part for each: ``master.outcomes.copy_final(rows)``.

    Args:
        data: statements that read and write jobs.
        control: statements that must not wait behind data.
        heartbeat: renewals alone.
        scans: statements that read much, for events; ``None``: there are none.
        writes: short writes of agents by key; ``None``: ``data`` does them.
        notices: connections on which an agent listens; ``None``: there are none.
    """

    def __init__(
        self,
        cluster: ClusterRow,
        schema: str,
        data: StatementRunner,
        control: StatementRunner,
        heartbeat: StatementRunner,
        scans: ConnectionPool | None = None,
        writes: StatementRunner | None = None,
        notices: ConnectionPool | None = None,
    ) -> None:
        self.cluster = cluster
        self._data = data
        self._control = control
        self._pools: tuple[ConnectionPool, ...] = ()
        self.intake = Intake(data, schema)
        self.uniqueness = Uniqueness(data, schema)
        self.requests = Requests(data)
        self.changes = Changes(data)
        self.queries = Queries(data)
        self.outcomes = Outcomes(data, writes or data)
        self.onboarding = Onboarding(data, writes or data)
        self.members = Members(control, heartbeat)
        self.leadership = Leadership(control)
        self.buckets = Buckets(control)
        self.rescue = Rescue(data, control)
        self.unserved = UnservedJobs(data, control)
        self.pauses = Pauses(control)
        self.schedules = Schedules(data, control)
        self.maintenance = Maintenance(data, control)
        self.stores = Stores(control)
        self.limits = Limits(data, control)
        self.locks = Locks(control)
        self.signals = Signals(data, schema)
        self.breakers = Breakers(control)
        self.workflows = Workflows(data)
        self.batches = Batches(data, control)
        self.bulk = BulkOperations(data, control)
        self.job_logs = JobLogs(data)
        self.events = Events(data, scans)
        self.inspection = InspectionQueries(data)
        self.due_notices = None if notices is None else DueNotices(notices, schema)

    @classmethod
    async def connect(
        cls,
        *,
        dsn: str,
        schema: str,
        settings: MasterSettings,
        application_name: str,
        agent: bool = False,
        pooler: bool = False,
        password: PasswordFunction | None = None,
        newer_schema: bool = False,
    ) -> Master:
        """Connect, and refuse a schema of another version.

        There are four sets of connections, so that neither a heartbeat nor a takeover waits behind data: ``data``
        (``pool_size``; ``agent_pool_size`` of an agent), ``control`` (1), ``heartbeat`` (1), ``scans`` (1). Each opens when
        it is first needed. While no control statement runs, its connection takes short writes of an agent for which no data
        connection is free.

        Args:
            dsn: ``postgresql://`` URL.
            schema: PostgreSQL schema of the cluster.
            application_name: an agent gives its id as text: its rescuer ends the backends of that name.
            agent: the program runs jobs: it has few data connections, which short writes share with control.
            pooler: the DSN leads to a pooler in transaction mode. For producers only.
            password: in place of the command of the settings.
            newer_schema: accept one that refuses this program (``check_schema``).

        Raises:
            Unavailable: the server cannot be reached.
            Refused: it does not accept the user, or the database does not exist.
            SchemaMismatch: the schema is missing, too old or too new.
        """
        connection_factory = ConnectionFactory(
            dsn, schema, settings, application_name, pooler=pooler, password=password
        )

        def pool(size: int, *, plan_once: bool = False) -> ConnectionPool:
            if pooler:
                return TransactionPool(connection_factory, size)
            return ConnectionPool(connection_factory, size, plan_once=plan_once)

        probe = pool(1)
        try:
            statements = StatementRunner(probe)
            await check_schema(statements, schema, allow_newer=newer_schema)
            rows = await statements.read("schema/cluster")
        finally:
            await probe.close()
        if not rows:
            raise SchemaMismatch(f"schema {schema} belongs to no cluster", hint="run `jobmaster db migrate`")
        size = settings.agent_pool_size if agent else settings.pool_size
        data, control, heartbeat, scans = pools = pool(size), pool(1, plan_once=True), pool(1, plan_once=True), pool(1)
        writes = StatementRunner(SpareConnections(data, control)) if agent else None
        row = ClusterRow(rows[0]["name"], rows[0]["uid"])
        runners = [StatementRunner(each) for each in (data, control, heartbeat)]
        master = cls(row, schema, runners[0], runners[1], runners[2], scans, writes, control if agent else None)
        master._pools = pools
        return master

    @property
    def statements(self) -> StatementRunner:
        """Any statement by its name, on the data connections: for packages that have statements of their own here."""
        return self._data

    async def close(self) -> None:
        """Close every connection; bounded, cuts what does not close in time."""
        for pool in self._pools:
            await pool.close()
