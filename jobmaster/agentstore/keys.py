"""The key grammar: everything JobMaster writes into a store, and nothing else is ever built.

==================================  =======  =======================================================================
``jm:{<cluster>}:store``            HASH     ``generation``, ``cluster_uid`` (16 bytes each), ``protocol``
``jm:{<cluster>}:agent:<hex>``      STRING   heartbeat of an agent, gone by the server's own TTL
``jm:{<cluster>}:finished``         channel  ids (16 bytes each, concatenated) that just got a row in the master
``jm:{<cluster>:<hex>}:meta``       HASH     ``epoch owner state gen ver seq bytes hint listed taken recalled lease_*``
``jm:{<cluster>:<hex>}:pending``    LIST     SavePending entries in arrival order
``jm:{<cluster>:<hex>}:assigned``   ZSET     onboarded entries, score = due time in microseconds
``jm:{<cluster>:<hex>}:claimed:<n>`` LIST    one batch taken by the owner, until it is settled
``jm:{<cluster>:<hex>}:lists``      SET      the names ``<n>``
``jm:{<cluster>:<hex>}:cancelled``  SET      ids with a cancel request, until the owner has noted them
``jm:{<cluster>:<hex>}:kept``       LIST     outcomes kept while the master is down
``jm:{<cluster>:<hex>}:wake``       LIST     at most one token
==================================  =======  =======================================================================

The braces are the hash tag of Redis Cluster: all keys of a bucket lie in one hash slot. Only heartbeats expire; an expiring
job would be a lost one. Names come from ids and from the cluster name, whose pattern allows neither braces nor blanks.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from jobmaster.model.errors import CodeError

_CLUSTER = re.compile(r"[a-z0-9][a-z0-9_-]{0,47}")
_LIST_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,64}")


class BucketKeys(NamedTuple):
    """The keys of one bucket."""

    meta: bytes
    pending: bytes
    assigned: bytes
    lists: bytes
    cancelled: bytes
    kept: bytes
    wake: bytes
    claimed_prefix: bytes
    """What the keys of claimed lists begin with; no key by itself."""

    def claimed(self, list_name: str) -> bytes:
        """Key of one claimed list; ``CodeError`` for a name that the grammar does not allow."""
        if _LIST_NAME.fullmatch(list_name) is None:
            raise CodeError(f"claimed list name {list_name!r} is not 1 to 64 of A-Z a-z 0-9 _ . : -")
        return self.claimed_prefix + list_name.encode()


class Keys:
    """All keys of one cluster."""

    def __init__(self, cluster: str) -> None:
        if _CLUSTER.fullmatch(cluster) is None:
            raise CodeError(f"cluster name {cluster!r} cannot stand in a key")
        self._cluster = cluster
        self.store = f"jm:{{{cluster}}}:store".encode()
        self.finished = f"jm:{{{cluster}}}:finished".encode()
        self.every_bucket = f"jm:{{{cluster}:*}}:*".encode()
        """SCAN pattern of all keys of all buckets (the cluster name holds no character that a pattern reads)."""
        self.every_key = (f"jm:{{{cluster}}}:*".encode(), self.every_bucket)
        """The patterns of all keys of the cluster."""
        self._bucket_of_key = re.compile(rb"jm:\{" + re.escape(cluster.encode()) + rb":([0-9a-f]{32})\}:.+", re.DOTALL)
        self.bucket = lru_cache(maxsize=4096)(self._bucket)

    def agent(self, agent_id: bytes) -> bytes:
        """Key of an agent's heartbeat."""
        return f"jm:{{{self._cluster}}}:agent:{agent_id.hex()}".encode()

    def bucket_of(self, key: bytes) -> bytes | None:
        """The bucket that a key belongs to, ``None`` when it is no bucket key of this cluster."""
        match = self._bucket_of_key.fullmatch(key)
        return bytes.fromhex(match.group(1).decode()) if match else None

    def list_of(self, bucket_id: bytes, key: bytes) -> str | None:
        """Name of the claimed list that lies under a key, ``None`` when it is none of that bucket."""
        prefix = self.bucket(bucket_id).claimed_prefix
        name = key[len(prefix) :].decode("latin-1") if key.startswith(prefix) else ""
        return name if _LIST_NAME.fullmatch(name) else None

    def _bucket(self, bucket_id: bytes) -> BucketKeys:
        if len(bucket_id) != 16:
            raise CodeError(f"a bucket id has 16 bytes, not {len(bucket_id)}")
        prefix = f"jm:{{{self._cluster}:{bucket_id.hex()}}}:".encode()
        return BucketKeys(
            meta=prefix + b"meta",
            pending=prefix + b"pending",
            assigned=prefix + b"assigned",
            lists=prefix + b"lists",
            cancelled=prefix + b"cancelled",
            kept=prefix + b"kept",
            wake=prefix + b"wake",
            claimed_prefix=prefix + b"claimed:",
        )
