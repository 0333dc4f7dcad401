"""A cluster in which one agent is under fault: it dies at a named call, and what remains is repaired without an operator.

Three agents: ``faulty`` serves lane ``victim`` and is the leader; ``healthy`` never dies and rescues; ``prey`` serves
lane ``prey`` and is killed whenever ``faulty`` shall have something to rescue. All run under their real supervisors, which
replace them whenever they die.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit, urlunsplit
from uuid import UUID

import asyncpg

from jobmaster.audit import AuditReport, AuditScope, audit
from jobmaster.client.cluster import Cluster
from jobmaster.client.receipts import JobReceipt
from jobmaster.client.workflows.definition import chain
from jobmaster.clock import new_id
from jobmaster.handlers import call
from jobmaster.model.errors import JobMasterError, NotFound
from jobmaster.model.flow.workflow import WorkflowState
from jobmaster.model.ids import AgentId, BucketId, Fence
from jobmaster.model.job import JobState
from jobmaster.ports import ReplyStatus
from jobmaster.wiring import open_cluster, open_reader, open_stores
from tests.crash_points import jobs, payments
from tests.crash_points.faulty_ports import VARIABLE, FaultDirectory, FaultSpec
from tests.support.deployment import ENVIRONMENT, REPOSITORY, AgentProcess, Deployment
from tests.support.forked_commands import ForkedProcess, Program
from tests.support.patience import patient
from tests.support.waiting import eventually

HANDLERS = "tests.crash_points.jobs"
FAULTY_AGENT = Program(
    str(Path(__file__).with_name("faulty_agent.py")), ("tests.crash_points.faulty_child", HANDLERS), supervises=True
)
FAULTY, HEALTHY, PREY = "faulty", "healthy", "prey"
NO_OTHERS = {"critical": 0, "high": 0, "low": 0, "very_low": 0}
LINKS = 3
"""Steps of a workflow."""
ROUNDS_MAX = 60
ROUND_SECONDS = 2.0
HEAL_SECONDS = 40.0
"""Bound of every wait on an idle machine (see `patient`)."""


class FaultyAgent(AgentProcess):
    """An agent with a directory of faults."""

    def __init__(self, config: Path, log: Path, name: str, faults: FaultDirectory) -> None:
        self.log = log
        self.faults = faults
        with log.open("wb") as out:
            self.process = ForkedProcess(
                [str(config), name],
                env={**ENVIRONMENT, VARIABLE: str(faults.directory)},
                cwd=REPOSITORY,
                out=out,
                program=FAULTY_AGENT,
            )

    def agent_pid(self) -> int | None:
        """The agent under this supervisor, among its short-lived helpers."""
        for pid in self.children():
            try:
                name = Path(f"/proc/{pid}/comm").read_text()
            except FileNotFoundError:
                continue
            if name == "faulty_child\n":
                return pid
        return None


@dataclass
class Work:
    """Jobs that were acknowledged, and how each has to end."""

    expected: dict[bytes, tuple[str, JobState, int]] = field(default_factory=dict)
    """Id -> (kind, final state, attempt)."""
    workflows: list[UUID] = field(default_factory=list)
    """Each has to succeed, with one job for each step."""

    def add(self, kind: str, receipts: Sequence[JobReceipt[Any]], state: JobState, attempt: int) -> None:
        for receipt in receipts:
            self.expected[receipt.id_bytes] = (kind, state, attempt)

    def add_workflow(self, workflow: UUID, steps: int) -> None:
        self.workflows.append(workflow)
        for number in range(1, steps + 1):
            job_id = workflow.bytes[:-4] + b"\0\1" + number.to_bytes(2)
            self.expected[job_id] = (f"step {number}", JobState.SUCCEEDED, 1)

    def join(self, other: Work) -> None:
        self.expected |= other.expected
        self.workflows += other.workflows

    @property
    def ids(self) -> list[bytes]:
        return list(self.expected)


class FaultyDeployment(Deployment):
    """The cluster of one test module."""

    def __init__(self, directory: Path, dsn: str, url: str, cluster: str) -> None:
        super().__init__(directory, dsn, url, cluster)
        self.by_name: dict[str, FaultyAgent] = {}
        self.acknowledged: list[bytes] = []
        self.client: Cluster
        self.document |= {
            "handlers": [HANDLERS],
            "leases": {
                "lease": "10s",
                "renew": "0.4s",
                "store_beat": "0.3s",
                "leader_lease": "1.3s",
                "leader_renew": "0.4s",
                "grace": "30s",
                "bucket_map": "0.2s",
                "tombstone": "1s",
                "orphan_grace": "2s",
                "anti_entropy": "0.5s",
            },
            "thresholds": {"transient_threshold": "0.2s", "persist_within": "0.2s", "transfer_batch": 10},
            "jobs": {"max_rescues": 10},
            "limits": {"submit_chunk_jobs": 20},
            "agents": {
                FAULTY: {"lanes": {jobs.VICTIM: {"medium": 2, **NO_OTHERS}}, "slots": 2, "bucket_buffer": 4},
                HEALTHY: {"lanes": {"default": {"medium": 1, **NO_OTHERS}}, "mode": "execution"},
                PREY: {
                    "lanes": {jobs.PREY: {"medium": 2, **NO_OTHERS}},
                    "mode": "execution",
                    "slots": 2,
                    "bucket_buffer": 2,
                },
            },
        }

    # ------------------------------------------------------------ life

    @classmethod
    async def start(cls, directory: Path, server_dsn: str, url: str, names: Sequence[str]) -> Self:
        """A fresh database, and agents of these names, up and serving."""
        database = f"faults_{secrets.token_hex(6)}"
        admin = await asyncpg.connect(server_dsn)
        try:
            await admin.execute(f"CREATE DATABASE {database} TEMPLATE template0 STRATEGY file_copy")
        finally:
            await admin.close()
        dsn = urlunsplit(urlsplit(server_dsn)._replace(path=f"/{database}"))
        deployment = cls(directory, dsn, url, f"faults-{secrets.token_hex(4)}")
        result = deployment.run("db", "migrate")
        assert result.returncode == 0, result.stdout + result.stderr
        await payments.create_table(deployment)
        try:
            for name in names:
                deployment.launch(name)
            for agent in deployment.by_name.values():
                await agent.wait_event("agent_started", seconds=HEAL_SECONDS)
            deployment.client = await open_cluster(deployment.settings, jobs.handlers)
        except BaseException:
            deployment.kill()
            raise
        return deployment

    def launch(self, name: str) -> FaultyAgent:
        _ = self.settings
        faults = FaultDirectory(self.path(f"orders-{name}"))
        faults.directory.mkdir(exist_ok=True)
        agent = FaultyAgent(self.config, self.path(f"{name}-{len(self.agents)}.log"), name, faults)
        self.agents.append(agent)
        self.by_name[name] = agent
        return agent

    async def stop(self) -> None:
        await self.client.close()
        await self.close()

    def kill(self) -> None:
        for agent in self.agents:
            if agent.process.poll() is None:
                agent.kill_all()

    # ------------------------------------------------------------ orders

    @property
    def faulty(self) -> FaultyAgent:
        return self.by_name[FAULTY]

    def give(self, name: str, fault: FaultSpec, to: str = FAULTY) -> None:
        self.by_name[to].faults.give(name, fault)

    def withdraw_all(self) -> None:
        """No order is left from a test that failed."""
        for agent in self.by_name.values():
            for name in agent.faults.waiting():
                agent.faults.withdraw(name)

    def withdraw(self, name: str, to: str = FAULTY) -> None:
        """End a ``HOLD`` or ``HOLD_REPLY``."""
        self.by_name[to].faults.withdraw(name)

    async def struck(self, name: str, to: str = FAULTY) -> None:
        """Wait until an order was carried out."""
        faults = self.by_name[to].faults

        async def done() -> bool:
            return faults.done(name)

        await eventually(done, HEAL_SECONDS, f"the call of {name}\n{self.tails()}")

    def tails(self) -> str:
        """The ends of the logs, for a failure."""
        return "\n".join(
            f"--- {name}\n" + "\n".join(agent.log.read_text().splitlines()[-12:])
            for name, agent in self.by_name.items()
        )

    # ------------------------------------------------------------ work

    async def work(self, *, many: int = 1) -> Work:
        """Jobs of every kind for the agent under fault: acknowledged by its store, committed, due later, slow, fenced,
        failing, retrying, put off, failed for good, given up, cancelled, and the steps of a workflow."""
        submit = self.client.submit
        path = {"path": str(self.path("witness"))}
        work = Work()
        succeeded = JobState.SUCCEEDED

        async def add(count: int, kind: str, state: JobState, attempt: int, handler: Any, **options: Any) -> None:
            receipts = await asyncio.gather(*(submit(handler, path, **options) for _ in range(count * many)))
            work.add(kind, receipts, state, attempt)

        await asyncio.gather(
            add(10, "quick", succeeded, 1, jobs.quick),
            add(4, "committed", succeeded, 1, jobs.quick, durability="master"),
            add(4, "later", succeeded, 1, jobs.quick, durability="master", after=0.4),
            add(3, "soon", succeeded, 1, jobs.quick, after=0.15),
            add(3, "slow", succeeded, 1, jobs.slow),
            add(1, "slow, committed", succeeded, 1, jobs.slow, durability="master"),
            add(2, "fenced", succeeded, 1, jobs.fenced),
            add(2, "limited", succeeded, 1, jobs.limited),
            add(2, payments.PAYS, succeeded, 1, jobs.pays),
            add(1, "fails", JobState.FAILED, 2, jobs.fails),
            add(1, "retries here", succeeded, 3, jobs.retries_here),
            add(1, "retries later", succeeded, 2, jobs.retries_later),
            add(1, "snoozes here", succeeded, 1, jobs.snoozes_here),
            add(1, "snoozes later", succeeded, 1, jobs.snoozes_later),
            add(1, "fails for good", JobState.FAILED, 1, jobs.fails_for_good),
            add(1, "given up", JobState.FAILED, 1, jobs.given_up),
            add(1, "late", succeeded, 1, jobs.late),
        )
        linked = chain(*[call(jobs.link, **path)] * LINKS)
        work.add_workflow(await self.client.workflows.start("links", linked), LINKS)
        receipts = await asyncio.gather(*(submit(jobs.quick, path, after=60, durability="master") for _ in range(1)))
        for receipt in receipts:
            await receipt.cancel()
        work.add("cancelled while held", receipts, JobState.CANCELLED, 0)
        running = await submit(jobs.endless, path)
        await self.cancel(running)
        work.add("cancelled in flight", [running], JobState.CANCELLED, -1)
        self.acknowledged += work.ids
        return work

    async def cancel(self, receipt: JobReceipt[Any]) -> None:
        """Cancel a job that may be in an agent's hands without a row for a moment."""

        async def asked() -> bool:
            try:
                await receipt.cancel()
            except NotFound:
                return False
            return True

        await eventually(asked, HEAL_SECONDS, "a cancel to find its job")

    async def prey_work(self, gate: Path) -> Work:
        """Jobs that lie in every part of a bucket of ``prey``: claimed, waiting, onboarded."""
        args = {"path": str(self.path("witness")), "gate": str(gate)}
        work = Work()
        # One by one: what is submitted at once goes to one bucket.
        receipts = [await self.client.submit(jobs.until_gate, args) for _ in range(20)]
        receipts += [await self.client.submit(jobs.until_gate, args, durability="master") for _ in range(16)]
        work.add("prey", receipts, JobState.SUCCEEDED, 1)
        self.acknowledged += work.ids
        return work

    async def work_until(self, *names: str) -> Work:
        """Rounds of work until the agent under fault has carried out its orders."""
        faults = self.faulty.faults
        work = Work()
        for _ in range(ROUNDS_MAX):
            work.join(await self.work())
            end = time.monotonic() + ROUND_SECONDS
            while time.monotonic() < end:
                if all(faults.done(name) for name in names):
                    return work
                await asyncio.sleep(0.02)
        raise AssertionError(f"{ROUNDS_MAX} rounds of work without the calls of {faults.waiting()}\n{self.tails()}")

    async def crowd(self) -> Work:
        """More slow jobs than the agent under fault can take into its memory: running, claimed and waiting ones."""
        path = {"path": str(self.path("witness"))}
        work = Work()
        # Not gathered: each goes to a bucket of its own choice, so both get their part.
        receipts = [await self.client.submit(jobs.slow, path) for _ in range(40)]
        work.add("crowd", receipts, JobState.SUCCEEDED, 1)
        self.acknowledged += work.ids
        return work

    # ------------------------------------------------------------ afterwards

    async def healed(self, work: Work, *, rescues_max: int, lost: Collection[str] = ()) -> None:
        """Every job has ended as it must, once; nothing is in flight, nothing is left in the store; the auditor is content.

        Args:
            rescues_max: how often a job may have been found with a dead agent.
        """
        try:
            for workflow in work.workflows:
                view = await self.client.workflows.wait(workflow, timeout=patient(HEAL_SECONDS))
                assert view.state is WorkflowState.SUCCEEDED, view
            ended = await self.client.wait_all(work.ids, timeout=patient(HEAL_SECONDS))
        except JobMasterError as error:
            raise AssertionError(f"{error}\n{await self.unfinished(work)}\n{self.tails()}") from error
        rows = await self.fetch(
            "SELECT id, attempt, rescues FROM job WHERE id = ANY($1)", [UUID(bytes=job_id) for job_id in work.ids]
        )
        assert len(rows) == len(work.expected), "one row per job"
        for row in rows:
            kind, state, attempt = work.expected[row["id"].bytes]
            found = (ended[row["id"]], row["attempt"], row["rescues"])
            assert found[0] is state, (kind, found)
            assert attempt < 0 or found[1] == attempt, (kind, found)
            assert found[2] <= rescues_max, (kind, found)
        await self.quiet()
        await payments.check(self, work.expected)
        report = await self.audit()
        assert report.clean, f"{report.violations} {report.evidence}"

    async def quiet(self) -> None:
        """Nothing is in flight in the master, every bucket of the store is empty, and every lost bucket has been drained."""
        stores = await open_stores(self.settings)
        try:
            store = stores["default"]
            left: object = None

            async def nothing_left() -> bool:
                nonlocal left
                rows = await self.fetch(
                    "SELECT state::text FROM job WHERE state IN ('ASSIGNED', 'PROCESSING', 'HELD')"
                    " UNION ALL SELECT state::text FROM bucket WHERE state IN ('LOST', 'DRAINING', 'COMPLETING')"
                )
                known = await store.known_buckets()
                depths = [depth for depth in await store.depths(known) if depth is not None] if known else []
                full = [d for d in depths if d.pending or d.assigned or d.claimed_lists or d.kept]
                left = ([row[0] for row in rows], full)
                return not rows and not full

            try:
                await eventually(nothing_left, HEAL_SECONDS, "quiet")
            except AssertionError as error:
                raise AssertionError(f"left behind: {left}\n{self.tails()}") from error
        finally:
            for store in stores.values():
                await store.close()

    async def audit(self) -> AuditReport:
        reader = await open_reader(self.settings)
        stores = await open_stores(self.settings)
        try:
            return await audit(reader, stores, AuditScope(quiet_seconds=0.0, acknowledged=self.acknowledged))
        finally:
            await reader.close()
            for store in stores.values():
                await store.close()

    async def unfinished(self, work: Work) -> list[tuple[Any, ...]]:
        """What became of the jobs that have not ended, for a failure."""
        rows = await self.fetch("SELECT id, state::text, attempt, rescues, token, bucket_id FROM job")
        known = {row["id"].bytes: tuple(row)[1:] for row in rows}
        final = {state.value for state in JobState if state.final}
        return [
            (kind, job_id.hex(), known.get(job_id, "no row"))
            for job_id, (kind, _, _) in work.expected.items()
            if job_id not in known or known[job_id][0] not in final
        ]

    # ------------------------------------------------------------ something to rescue

    async def kill_agent(self, name: str) -> None:
        """SIGKILL to the agent alone: its supervisor certifies the death and starts another one."""
        agent = self.by_name[name]

        async def there() -> int | None:
            return agent.agent_pid()

        os.kill(await eventually(there, HEAL_SECONDS, f"an agent {name}"), signal.SIGKILL)

    async def agent_id(self, name: str) -> bytes:
        """The living agent of that name."""

        async def found() -> list[asyncpg.Record]:
            return await self.fetch("SELECT id FROM agent WHERE name = $1 AND state = 'ACTIVE' ORDER BY id DESC", name)

        rows: list[asyncpg.Record] = await eventually(found, HEAL_SECONDS, f"an active agent {name}")
        return bytes(rows[0]["id"].bytes)

    async def fence_behind_its_back(self, bucket_id: bytes) -> None:
        """A bucket's store says that it has another owner, while the master knows nothing of it (as after a failover that
        forgot a rescuer's mark)."""
        stores = await open_stores(self.settings)
        reader = await open_reader(self.settings)
        try:
            cluster = await self.fetch("SELECT uid FROM cluster")
            generation = await self.fetch("SELECT generation FROM agent_store WHERE name = 'default'")
            store = stores["default"]
            await store.initialise(cluster[0]["uid"].bytes, generation[0]["generation"].bytes)
            status, _ = await store.fence(Fence(BucketId(bucket_id), 5, AgentId(new_id())))
            assert status is ReplyStatus.OK
        finally:
            await reader.close()
            for store in stores.values():
                await store.close()
