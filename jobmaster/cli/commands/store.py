"""``jobmaster store``: prepare and check agent stores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from jobmaster.cli.invocation import Invocation, pass_invocation
from jobmaster.cli.running import run_async
from jobmaster.cli.tables import Column, emit_rows
from jobmaster.doctor.store_check import store_record

if TYPE_CHECKING:
    from jobmaster.agentstore.store import AgentStore
    from jobmaster.settings.model import ClusterSettings

COLUMNS = (
    Column("STORE", "name"),
    Column("SERVER", "server"),
    Column("EVICTION", "eviction_policy"),
    Column("APPEND-ONLY", "append_only", lambda on: "yes" if on else "NO"),
    Column("FSYNC", "append_fsync"),
    Column("GENERATION", "generation"),
    Column("STATE", "state", whole=True),
)


NODE_COLUMNS = (
    Column("STORE", "store"),
    Column("NODE", "name"),
    Column("SERVER", "server"),
    Column("REPLICAS", "replicas"),
    Column("APPEND-ONLY", "append_only", lambda on: "yes" if on else "NO"),
    Column("FSYNC", "append_fsync"),
    Column("EVICTION", "eviction_policy"),
    Column("FUNCTIONS", "functions", lambda build: "NONE" if build is None else f"build {build}"),
)
"""Of the primaries of server clusters, below the stores; for programs they are a part of the store."""


@click.group("store")
def store_group() -> None:
    """Prepare and check agent stores."""


@store_group.command("init")
@click.argument("name", required=False)
@pass_invocation
def init(invocation: Invocation, name: str | None) -> None:
    """Load the functions into every store (or the one named) and claim it for this cluster.

    Agents do the same when they start; this command is for stores where only an administrator may load functions. It is safe
    to repeat.

    \b
    Examples:
      jobmaster store init
      jobmaster store init redis-b
    """
    _emit(run_async(_each(invocation.settings, name, prepare=True)), invocation)


@store_group.command("check")
@click.argument("name", required=False)
@pass_invocation
@click.pass_context
def check(ctx: click.Context, invocation: Invocation, name: str | None) -> None:
    """Check every store (or the one named) and change nothing. Exit code 5 when one does not fit.

    Of a Valkey or Redis Cluster also each primary: its replicas, its log, its functions.

    \b
    Example:
      jobmaster store check -o json
    """
    rows = run_async(_each(invocation.settings, name, prepare=False))
    _emit(rows, invocation)
    if any(row["state"] != "ok" for row in rows):
        ctx.exit(5)


@store_group.command("acl")
@pass_invocation
def acl(invocation: Invocation) -> None:
    """Print ACL SETUSER lines of least-privilege users: loader, agent, producer, operator. Needs no server.

    Their rights are read from the functions that each of them calls. After `jobmaster store init` by the loader, agents
    load no functions. Put a password in place of each <password>.

    \b
    Example:
      jobmaster store acl
    """
    from jobmaster.agentstore.acl import acl as lines

    click.echo(lines(invocation.settings.cluster), nl=False)


def _emit(rows: list[dict[str, Any]], invocation: Invocation) -> None:
    emit_rows(rows, COLUMNS, invocation.output, empty="no stores are configured")
    nodes = [{"store": row["name"], **node} for row in rows for node in row["nodes"]]
    if nodes and invocation.output.for_people:
        click.echo()
        emit_rows(nodes, NODE_COLUMNS, invocation.output, empty="")


async def _each(settings: ClusterSettings, name: str | None, *, prepare: bool) -> list[dict[str, Any]]:
    from jobmaster.cli.running import reader_of
    from jobmaster.clock import new_id
    from jobmaster.model.errors import NotFound
    from jobmaster.wiring import open_master, open_stores

    if name is not None and name not in settings.stores:
        raise NotFound(f"there is no store {name!r}", hint=f"configured are {', '.join(settings.stores)}")
    async with reader_of(settings) as reader:
        known = {row["name"]: row["generation"].bytes for row in await reader.report("stores")}
        uid = (await reader.report("server"))[0]["cluster_uid"].bytes
    stores = await open_stores(settings, needed=None if prepare else ())
    master = await open_master(settings, application_name="jobmaster-cli") if prepare else None
    try:
        rows = []
        for store_name, store in stores.items():
            if name not in (None, store_name):
                continue
            if master is not None:
                known[store_name] = (await master.stores.store_generation(store_name, new_id())).generation
                await store.initialise(uid, known[store_name])
                rows.append(store_record(store_name, await store.health(), uid, known[store_name], await store.nodes()))
            else:
                rows.append(await _look(store_name, store, uid, known.get(store_name)))
        return rows
    finally:
        for store in stores.values():
            await store.close()
        if master is not None:
            await master.close()


async def _look(name: str, store: AgentStore, uid: bytes, generation: bytes | None) -> dict[str, Any]:
    """The record of a store; that of a store that does not answer has the error as its state."""
    from jobmaster.model.errors import JobMasterError

    try:
        return store_record(name, await store.health(), uid, generation, await store.nodes())
    except JobMasterError as error:
        absent = dict.fromkeys(
            ("server", "eviction_policy", "append_only", "append_fsync", "fails_over", "awaits_replica", "generation")
        )
        return {"name": name, **absent, "nodes": [], "state": error.message}
