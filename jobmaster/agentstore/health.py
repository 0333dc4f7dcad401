"""The settings and state that a store reports, and whether they are fit.

Valkey reports ``redis_version:7.2.4`` for the sake of old clients, and its own number beside it; both are read. Managed
services often forbid CONFIG: what then cannot be known is ``unknown``, and is not held against the store.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

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


class Report(NamedTuple):
    """What one server reports."""

    where: str
    """The server, for messages."""
    node: str
    """``host:port`` of a node of a server cluster, or empty."""
    info: dict[str, str]
    config: dict[str, str]

    @property
    def version(self) -> str:
        """Of Valkey, or of Redis."""
        return self.info.get("valkey_version") or self.info.get("redis_version", UNKNOWN)

    @property
    def flavour(self) -> str:
        """``redis`` or ``valkey``."""
        return "valkey" if "valkey_version" in self.info else "redis"

    @property
    def eviction_policy(self) -> str:
        """``unknown`` where it may not be read."""
        return self.config.get("maxmemory-policy") or self.info.get("maxmemory_policy") or UNKNOWN

    @property
    def append_only(self) -> bool:
        """It keeps an append-only file."""
        return self.info.get("aof_enabled") == "1"

    @property
    def append_fsync(self) -> str:
        """``unknown`` where it may not be read."""
        return self.config.get("appendfsync", UNKNOWN)

    @property
    def replicas(self) -> int:
        """Replicas that are connected to it."""
        return int(self.info.get("connected_slaves", "0"))

    @property
    def awaits_replica(self) -> bool:
        """It takes writes only while a replica is near."""
        return "min_slaves_good_slaves" in self.info


SYNC_ORDER = ("no", UNKNOWN, "everysec", "always")
"""Values of ``appendfsync``, the weakest first."""


def health_of(
    reports: Sequence[Report], store: tuple[bytes | None, bytes | None], *, fails_over: bool = False
) -> StoreHealth:
    """The health of a store: of several servers, the weakest of each.

    Args:
        store: (generation, cluster_uid) as they lie there.
    """
    oldest = min(reports, key=lambda report: _number(report.version))
    evicting = [report.eviction_policy for report in reports if report.eviction_policy not in {"noeviction", UNKNOWN}]
    policies = {report.eviction_policy for report in reports}
    syncs = {report.append_fsync for report in reports}
    return StoreHealth(
        version=oldest.version,
        flavour=oldest.flavour,
        eviction_policy=evicting[0] if evicting else UNKNOWN if UNKNOWN in policies else "noeviction",
        append_only=all(report.append_only for report in reports),
        append_fsync=next((value for value in SYNC_ORDER if value in syncs), UNKNOWN),
        generation=store[0],
        cluster_uid=store[1],
        fails_over=fails_over,
        awaits_replica=all(report.awaits_replica for report in reports),
    )


def refuse_cluster(info: dict[str, str], where: str) -> None:
    """``StoreRefused`` for a node of a cluster of the servers, before a key is used: the reply would be about a slot."""
    if info.get("cluster_enabled") == "1":
        raise StoreRefused(
            f"{where} is a node of a Redis or Valkey Cluster, and its URL is that of a server by itself",
            hint="name some nodes of the cluster: redis+cluster://host1:6379,host2:6379",
        )


def check_fit(report: Report) -> None:
    """``StoreRefused`` when jobs must not be kept in this server; the hint names the cure."""
    where = report.where
    least = VALKEY_MIN if report.flavour == "valkey" else REDIS_MIN
    if _number(report.version) < least:
        raise StoreRefused(
            f"{where} is {report.flavour} {report.version}, which is too old: its server functions are missing or incomplete",
            hint=f"use Redis >= {REDIS_MIN[0]}.{REDIS_MIN[1]} or Valkey >= {VALKEY_MIN[0]}.{VALKEY_MIN[1]}",
        )
    if report.info.get("role") in {"slave", "replica"}:
        raise StoreRefused(f"{where} is a replica and takes no writes", hint="give the address of its primary")
    if report.eviction_policy not in {"noeviction", UNKNOWN}:
        raise StoreRefused(
            f"{where} has maxmemory-policy {report.eviction_policy}: it would throw waiting jobs away when it is full",
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
