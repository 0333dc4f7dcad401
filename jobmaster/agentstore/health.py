"""The settings and state that a store reports, and whether they are fit.

Valkey reports ``redis_version:7.2.4`` for the sake of old clients, and its own number beside it; both are read. Managed
services often forbid CONFIG: what then cannot be known is ``unknown``, and is not held against the store.
"""

from __future__ import annotations

from jobmaster.model.errors import StoreRefused
from jobmaster.ports import StoreHealth

UNKNOWN = "unknown"
REDIS_MIN = (7, 0)
VALKEY_MIN = (7, 2)


def parse_info(reply: bytes) -> dict[str, str]:
    """INFO as a mapping."""
    lines = reply.decode("utf-8", "replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))


def parse_config(reply: list[bytes] | None) -> dict[str, str]:
    """CONFIG GET (names and values in turn) as a mapping; ``None`` when the store forbade it."""
    texts = [item.decode("utf-8", "replace") for item in reply or ()]
    return dict(zip(texts[::2], texts[1::2], strict=True))


def health_of(info: dict[str, str], config: dict[str, str], store: tuple[bytes | None, bytes | None]) -> StoreHealth:
    """``store`` is (generation, cluster_uid) as they lie there."""
    valkey = info.get("valkey_version")
    return StoreHealth(
        version=valkey or info.get("redis_version", UNKNOWN),
        flavour="valkey" if valkey else "redis",
        eviction_policy=config.get("maxmemory-policy") or info.get("maxmemory_policy") or UNKNOWN,
        append_only=info.get("aof_enabled") == "1",
        append_fsync=config.get("appendfsync", UNKNOWN),
        generation=store[0],
        cluster_uid=store[1],
        awaits_replica="min_slaves_good_slaves" in info,
    )


def refuse_cluster(info: dict[str, str], where: str) -> None:
    """``StoreRefused`` for a node of a cluster of the servers, before a key is used: the reply would be about a slot."""
    if info.get("cluster_enabled") == "1":
        raise StoreRefused(
            f"{where} is a node of a Redis or Valkey Cluster, which is not supported yet",
            hint="use stand-alone servers, each an agent store of its own (one cluster of agents uses many), or servers that "
            "Sentinels watch: redis+sentinel://host1:26379,host2:26379/group/0",
        )


def check_fit(health: StoreHealth, info: dict[str, str], where: str) -> None:
    """``StoreRefused`` when jobs must not be kept in this store; the hint names the cure."""
    least = VALKEY_MIN if health.flavour == "valkey" else REDIS_MIN
    if _number(health.version) < least:
        raise StoreRefused(
            f"{where} is {health.flavour} {health.version}, which is too old: its server functions are missing or incomplete",
            hint=f"use Redis >= {REDIS_MIN[0]}.{REDIS_MIN[1]} or Valkey >= {VALKEY_MIN[0]}.{VALKEY_MIN[1]}",
        )
    if info.get("role") in {"slave", "replica"}:
        raise StoreRefused(f"{where} is a replica and takes no writes", hint="give the address of its primary")
    if health.eviction_policy not in {"noeviction", UNKNOWN}:
        raise StoreRefused(
            f"{where} has maxmemory-policy {health.eviction_policy}: it would throw waiting jobs away when it is full",
            hint="run `CONFIG SET maxmemory-policy noeviction`, and write `maxmemory-policy noeviction` into its"
            " configuration file",
        )


def _number(version: str) -> tuple[int, int]:
    """(major, minor); (0, 0) for what is no version."""
    parts = version.split(".")
    try:
        return int(parts[0]), int(parts[1])
    except (IndexError, ValueError):
        return 0, 0
