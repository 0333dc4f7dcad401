"""A cluster whose agents, producers, viewers and operators have no more rights than `jobmaster db roles` and `jobmaster store
acl` give them."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import msgspec
import pytest
import redis.asyncio
from redis.exceptions import NoPermissionError

from jobmaster.agentstore.acl import StoreUser, line_of, user_name
from jobmaster.agentstore.library import PREFIX
from jobmaster.client.signals.wait import signal
from jobmaster.embedded import PostgresServer, ValkeyServer
from jobmaster.handlers import Fail, Unique, call
from jobmaster.master.driver.statements import statement
from jobmaster.master.schema.roles import STATEMENTS, Role, role_name, script, statements_of
from jobmaster.model.errors import AccessRefused
from jobmaster.pipeline.jobs import PipelineRun, cluster_options
from jobmaster.pipeline.jobs.step_handlers import archive, vacuum
from jobmaster.settings.current import set_current_settings
from jobmaster.testing import job_context
from jobmaster.wiring import open_cluster
from tests.support.deployment import Deployment
from tests.support.patience import PATIENCE_SECONDS
from tests.system.jobs import add, handlers

pytestmark = pytest.mark.slow

SCHEMA = "jobmaster_least"


class Least:
    """A master and a store with roles and users, and a deployment for each of them."""

    def __init__(self, deployment: Deployment, passwords: dict[StoreUser, str]) -> None:
        self._deployment = deployment
        self._passwords = passwords
        self._admin_dsn, self._admin_url = deployment.dsn, deployment.document["stores"]["default"]["url"]

    def act_as(self, role: Role, user: StoreUser) -> Deployment:
        """The deployment, for a program with these credentials."""
        document = self._deployment.document
        document["master"]["dsn"] = dsn_of(self._admin_dsn, role)
        path = urlsplit(self._admin_url).path
        document["stores"]["default"]["url"] = (
            f"unix://{user_name(document['cluster'], user)}:{self._passwords[user]}@{path}"
        )
        return self._deployment


def dsn_of(admin_dsn: str, role: Role) -> str:
    return admin_dsn.replace("postgresql://jobmaster@", f"postgresql://{role_name(SCHEMA, role)}@")


@pytest.fixture
async def least(
    tmp_path: Path,
    master_dsn: str,
    postgres_server: PostgresServer,
    new_valkey: Callable[..., ValkeyServer],
    cluster_name: str,
) -> AsyncIterator[Least]:
    """Roles first, then the migration by the owner, which grants; then the store by its loader."""
    admin = await asyncpg.connect(master_dsn)
    await admin.execute(script(SCHEMA, create=True, grant=False))
    await admin.close()
    store = new_valkey()
    deployment = Deployment(tmp_path, master_dsn, store.url, cluster_name)
    deployment.document["master"]["schema"] = SCHEMA
    deployment.document["leases"] |= {"lease": "300s"}  # a process that is replaced would start with other credentials
    passwords = {user: secrets.token_hex(8) for user in StoreUser}
    client = redis.asyncio.Redis.from_url(store.url)
    for user, password in passwords.items():
        await client.execute_command(*line_of(cluster_name, user, f">{password}").split())  # type: ignore[no-untyped-call]
    await client.aclose()
    made = Least(deployment, passwords)
    by_owner = made.act_as(Role.OWNER, StoreUser.LOADER)
    assert by_owner.run("db", "migrate").returncode == 0
    done = made.act_as(Role.OPERATOR, StoreUser.LOADER).run("store", "init")
    assert done.returncode == 0, done.stderr
    yield made
    await deployment.close()


async def test_a_cluster_works_under_these_roles_and_each_of_them_is_refused_what_is_not_its_own(
    least: Least, tmp_path: Path
) -> None:
    deployment = least.act_as(Role.AGENT, StoreUser.AGENT)
    admin_dsn = deployment.dsn
    agent = await deployment.start_agent()
    least.act_as(Role.PRODUCER, StoreUser.PRODUCER)
    async with await open_cluster(deployment.settings, handlers) as producer:
        now = await producer.submit(call(add, 1, 2))
        kept = await producer.submit(call(add, 2, 3), durability="master")
        unique = await producer.submit(call(add, 3, 4), unique=Unique(key="one", on_conflict="replace"), after=3600)
        again = await producer.submit(call(add, 3, 5), unique=Unique(key="one", on_conflict="replace"), after=3600)
        waits = await producer.submit(call(add, 5, 6), wait_for=signal("ready"))
        await producer.signals.send("ready")
        assert [await receipt.result(timeout=PATIENCE_SECONDS) for receipt in (now, kept, waits)] == [3, 5, 11]
        assert (await producer.get(unique.id)).state == "CANCELLED"
        with pytest.raises(AccessRefused):
            await producer.cancel(again.id)
        with pytest.raises(AccessRefused):
            await producer.pause(handler="add")
    least.act_as(Role.VIEWER, StoreUser.OPERATOR)
    for words in (["status"], ["job", "list"], ["job", "show", now.id.hex], ["events"]):
        seen = deployment.run(*words)
        assert seen.returncode == 0, f"{words}: {seen.stderr}"
    refused = deployment.run("job", "cancel", again.id.hex)
    assert refused.returncode != 0
    assert "permission denied" in refused.stderr
    least.act_as(Role.OPERATOR, StoreUser.OPERATOR)
    for words in (
        ["job", "cancel", again.id.hex], ["pause", "handler", "add"], ["resume", "handler", "add"], ["doctor"],
        ["store", "check"], ["bucket", "list"],
    ):  # fmt: skip
        done = deployment.run(*words)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    least.act_as(Role.AGENT, StoreUser.AGENT)
    assert await agent.terminate() == 0
    for word in ("does not allow", "permission denied", "NOPERM", "forbids"):
        assert word not in agent.log.read_text(), agent.log.read_text()
    await _refused_in_sql(admin_dsn)


@pytest.mark.long
@pytest.mark.spark
async def test_a_producer_submits_files_with_spark_and_repeats_it(least: Least, tmp_path: Path) -> None:
    agent = await least.act_as(Role.AGENT, StoreUser.AGENT).start_agent()  # it publishes its handlers
    files = tmp_path / "orders"
    files.mkdir()
    for number in range(2):
        (files / f"{number}.csv").write_text(f"one,other\n{number},1\n{number},2\n")
    producer = least.act_as(Role.PRODUCER, StoreUser.PRODUCER)
    words = ["--format", "csv", "--handler", "add", "--key", "*", "--master", "local[1]", "-o", "json"]
    words += ["--lake", str(tmp_path / "lake")]
    for inserted in (4, 0):
        done = producer.run("pipeline", "submit", str(files), *words)
        assert done.returncode == 0, done.stderr
        assert (found := json.loads(done.stdout))["inserted"] == inserted, found
    least.act_as(Role.AGENT, StoreUser.AGENT)
    assert await agent.terminate() == 0


async def _refused_in_sql(admin_dsn: str) -> None:
    """Acts in SQL that the rights of a role do not cover."""
    for role, text in (
        (Role.PRODUCER, "UPDATE job SET state = 'SUCCEEDED'"),
        (Role.PRODUCER, "UPDATE job SET args = ''"),
        (Role.PRODUCER, "DELETE FROM job"),
        (Role.PRODUCER, "UPDATE bucket SET epoch = epoch + 1"),
        (Role.PRODUCER, "SELECT workflow_cancel(gen_random_uuid(), 'x')"),
        (Role.PRODUCER, "SELECT change_job(gen_random_uuid(), '{}')"),
        (Role.VIEWER, "SELECT submit('add')"),
        (Role.VIEWER, "INSERT INTO operator_log (actor, action) VALUES ('a', 'b')"),
        (Role.AGENT, "DELETE FROM job"),
        (Role.AGENT, "DROP TABLE job"),
        (Role.AGENT, "CREATE TABLE mine (id integer)"),
        (Role.OPERATOR, "DELETE FROM job"),
        (Role.OPERATOR, "ALTER TABLE job ADD COLUMN mine integer"),
    ):
        connection = await asyncpg.connect(dsn_of(admin_dsn, role), server_settings={"search_path": SCHEMA})
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute(text)
        await connection.close()


@pytest.mark.spark
async def test_a_step_of_the_pipeline_is_a_job_that_logs_in_as_the_owner(
    least: Least, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent's own role is refused; the driver is a real one."""
    deployment = least.act_as(Role.AGENT, StoreUser.AGENT)
    where = PipelineRun(lake=str(tmp_path / "lake"), dsn_env="PIPELINE_DSN")

    async def in_the_agent() -> None:
        set_current_settings(deployment.settings)
        with pytest.raises(Fail, match="PIPELINE_DSN, which is no address of a PostgreSQL"):
            await vacuum(job_context(), spark=where)
        monkeypatch.setenv("PIPELINE_DSN", dsn_of(deployment.dsn, Role.OWNER))
        with pytest.raises(Fail, match="permission denied"):
            await vacuum(job_context(), spark=msgspec.structs.replace(where, dsn_env=None))
        assert (await vacuum(job_context(), spark=where))["files"] == 0
        assert (await archive(job_context(), spark=where))["archived_jobs"] == 0
        monkeypatch.setenv("PIPELINE_DSN", dsn_of(deployment.dsn, Role.VIEWER))
        assert f"//{role_name(SCHEMA, Role.VIEWER)}@" in cluster_options(dsn_env="PIPELINE_DSN")["url"]
        assert f"//{role_name(SCHEMA, Role.AGENT)}@" in cluster_options()["url"]

    await asyncio.create_task(in_the_agent())


async def test_the_server_plans_every_statement_of_a_role_under_that_role(least: Least, master_dsn: str) -> None:
    admin = await asyncpg.connect(
        master_dsn, server_settings={"search_path": SCHEMA, "plan_cache_mode": "force_generic_plan"}
    )
    for role in STATEMENTS:
        for name in statements_of(role):
            await _plan(admin, role_name(SCHEMA, role), name)
    # Every function that runs with its maker's rights has a search path of its own, and is not for everyone.
    definers = await admin.fetch(
        "SELECT proname, array_to_string(proconfig, ' ') AS settings, "
        "has_function_privilege('public', oid, 'EXECUTE') AS public "
        "FROM pg_proc WHERE pronamespace = $1::regnamespace AND prosecdef AND prorettype <> 'trigger'::regtype",
        SCHEMA,
    )
    assert {"submit", "submit_unique", "ensure_partitions"} <= {row["proname"] for row in definers}
    assert [row for row in definers if row["public"] or "pg_temp" not in (row["settings"] or "")] == []
    await admin.close()


async def _plan(admin: asyncpg.Connection[asyncpg.Record], role: str, name: str) -> None:
    """EXPLAIN asks for the rights of a statement and runs nothing."""
    text = statement(name).text
    async with admin.transaction():
        await admin.execute(f"SET LOCAL ROLE {role}")
        try:
            if statement(name).body.startswith("LOCK"):
                await admin.execute(text)
                return
            if statement(name).body.startswith("DO") or name == "transactions/forget":
                return
            parameters = max((int(number) for number in re.findall(r"\$(\d+)", statement(name).body)), default=0)
            await admin.execute(f"PREPARE asked AS {text}")
            nothing = f"({', '.join(['NULL'] * parameters)})" if parameters else ""
            await admin.execute(f"EXPLAIN EXECUTE asked{nothing}")
            await admin.execute("DEALLOCATE asked")
        except asyncpg.InsufficientPrivilegeError as error:
            raise AssertionError(f"{role} may not run {name}: {error}") from error


async def test_a_user_of_a_store_calls_its_functions_on_the_keys_of_its_cluster_and_nothing_else(
    least: Least,
) -> None:
    deployment = least.act_as(Role.PRODUCER, StoreUser.PRODUCER)
    cluster = deployment.document["cluster"]
    client = redis.asyncio.Redis.from_url(deployment.document["stores"]["default"]["url"])
    for words in (
        ["EVAL", "return 1", "0"], ["SCRIPT", "FLUSH"], ["CONFIG", "SET", "maxmemory", "1"], ["KEYS", "*"],
        ["FLUSHALL"], ["FUNCTION", "FLUSH"], ["FCALL", f"{PREFIX}claim", "0"], ["FCALL", f"{PREFIX}fence", "0"],
        ["HGET", "jm:{other}:store", "protocol"], ["DEL", f"jm:{{{cluster}}}:store"], ["SUBSCRIBE", "other"],
        ["PUBLISH", f"jm:{{{cluster}}}:finished", "x"], ["ACL", "LIST"], ["SHUTDOWN"], ["REPLICAOF", "NO", "ONE"],
    ):  # fmt: skip
        with pytest.raises(NoPermissionError):
            await client.execute_command(*words)  # type: ignore[no-untyped-call]
    await client.aclose()
    least.act_as(Role.AGENT, StoreUser.AGENT)
    client = redis.asyncio.Redis.from_url(deployment.document["stores"]["default"]["url"])
    for words in (["FUNCTION", "LOAD", "REPLACE", "x"], ["EVAL", "return 1", "0"], ["FLUSHDB"]):
        with pytest.raises(NoPermissionError):
            await client.execute_command(*words)  # type: ignore[no-untyped-call]
    await client.aclose()
