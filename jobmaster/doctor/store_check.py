"""One agent store, as ``store check`` and the doctor see it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

EMPTY_REMEDY = "if the URL's host and database number are right, it was emptied: `jobmaster store init` claims it again"


def store_record(
    name: str, health: Any, uid: bytes, generation: bytes | None, nodes: Sequence[Any] = ()
) -> dict[str, Any]:
    """One store as a record; ``state`` is ``ok`` or a sentence.

    Args:
        nodes: the primaries of a server cluster.
    """
    without = [node.name for node in nodes if node.functions is None]
    if health.eviction_policy not in ("noeviction", "unknown"):
        state = f"evicts keys: {health.eviction_policy} (run `CONFIG SET maxmemory-policy noeviction`)"
    elif health.generation is None:
        state = "not initialised" if generation is None else f"EMPTY, but registered in the master ({EMPTY_REMEDY})"
    elif health.cluster_uid != uid:
        state = "belongs to another cluster"
    elif health.generation != generation:
        state = "another generation than in the master"
    elif without:
        state = f"no functions on {', '.join(without)} (agents load them, or `jobmaster store init`)"
    else:
        state = "ok"
    return {
        "name": name,
        "server": f"{health.flavour} {health.version}",
        "eviction_policy": health.eviction_policy,
        "append_only": health.append_only,
        "append_fsync": health.append_fsync,
        "fails_over": health.fails_over,
        "awaits_replica": health.awaits_replica,
        "generation": health.generation.hex() if health.generation else None,
        "nodes": [node._asdict() for node in nodes],
        "state": state,
    }
