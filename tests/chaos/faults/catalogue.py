"""The catalogue of faults: effect and target of each, and the durability levels that do not promise to survive it.

To inject a fault returns how it is healed. Its target is drawn from a seed of its own, so that one seed is one schedule. A
fault that is not possible on a machine gives the reason.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from typing import NamedTuple

from tests.chaos.cluster.replicated_store import ClusterStore, WatchedStore
from tests.chaos.faults import agent_faults, network_faults, server_faults
from tests.chaos.faults.targets import InjectedFault, Targets

AGENT, FSYNC = "store", "store_fsync"
ALL_COVER: frozenset[str] = frozenset()
LOG_LOST = frozenset({AGENT})
STORE_LOST = frozenset({AGENT, FSYNC})


class FaultKind(NamedTuple):
    """One kind of fault."""

    description: str
    inject: Callable[[Targets, random.Random, float], InjectedFault]
    uncovered: frozenset[str] = ALL_COVER
    longest_seconds: float = 0.5
    lasting_seconds: float = 0.0
    """How long it lasts among the long faults: several leases; 0: it is over at once."""
    needs: Callable[[Targets], str | None] = lambda _: None
    forgets_seconds: float = math.inf
    """At most so much older is what a store has lost by it; the checker excuses no older loss."""


def _disks(targets: Targets) -> str | None:
    return targets.servers.no_disks


def _freezer(targets: Targets) -> str | None:
    return targets.no_freezer


def _namespaces(targets: Targets) -> str | None:
    return targets.no_time_namespaces


def _standby(targets: Targets) -> str | None:
    return targets.servers.no_standby()


def _single(targets: Targets) -> str | None:
    return None if targets.servers.replicated is None else "the store that syncs every second is not one server"


def _watched(targets: Targets) -> str | None:
    return None if isinstance(targets.servers.replicated, WatchedStore) else "no Sentinels (--stores sentinel)"


def _clustered(targets: Targets) -> str | None:
    return None if isinstance(targets.servers.replicated, ClusterStore) else "no Valkey Cluster (--stores cluster)"


KINDS: dict[str, FaultKind] = {
    # agents and producers
    "child_kill": FaultKind("SIGKILL to an agent's process; its supervisor lives", agent_faults.kill_child),
    "supervisor_kill": FaultKind("SIGKILL to a supervisor; its agent lives", agent_faults.kill_supervisor),
    "agent_kill": FaultKind("SIGKILL to supervisor and agent at once", agent_faults.kill_agent),
    "child_stop": FaultKind(
        "SIGSTOP to an agent's process past its lease", agent_faults.stop_child, longest_seconds=8, lasting_seconds=20
    ),
    "agent_stop": FaultKind(
        "SIGSTOP to supervisor and agent, then SIGCONT", agent_faults.stop_agent, longest_seconds=8, lasting_seconds=30
    ),
    "agent_freeze": FaultKind(
        "the control group's freezer stops a whole agent",
        agent_faults.freeze_agent,
        longest_seconds=8,
        lasting_seconds=20,
        needs=_freezer,
    ),
    "agent_restart": FaultKind("SIGTERM to an agent under load, and a new one", agent_faults.restart_agent),
    "descriptors_used_up": FaultKind(
        "an agent may open nothing more, and its connections are cut",
        agent_faults.no_descriptors,
        longest_seconds=4,
        lasting_seconds=16,
    ),
    "producer_kill": FaultKind("SIGKILL to a producer", agent_faults.kill_producer),
    "producer_stop": FaultKind(
        "SIGSTOP to a producer, then SIGCONT", agent_faults.stop_producer, longest_seconds=5, lasting_seconds=20
    ),
    "wall_clock_jump": FaultKind(
        "an agent's wall clock jumps by up to an hour", agent_faults.turn_clock, longest_seconds=6, lasting_seconds=30
    ),
    "boot_clock_shift": FaultKind(
        "an agent comes back with CLOCK_BOOTTIME days ahead", agent_faults.shift_boottime, needs=_namespaces
    ),
    # the master
    "master_restart": FaultKind("immediate shutdown of PostgreSQL, and start", server_faults.restart_master),
    "master_kill": FaultKind("SIGKILL to the postmaster, and start", server_faults.kill_master),
    "master_outage": FaultKind(
        "PostgreSQL is down for a while", server_faults.stop_master, longest_seconds=6, lasting_seconds=60
    ),
    "master_freeze": FaultKind(
        "SIGSTOP to every process of PostgreSQL", server_faults.freeze_master, longest_seconds=5, lasting_seconds=30
    ),
    "backends_ended": FaultKind("pg_terminate_backend for every client", server_faults.end_backends),
    "table_locked": FaultKind(
        "ACCESS EXCLUSIVE on the job table", server_faults.lock_table, longest_seconds=4, lasting_seconds=16
    ),
    "master_connections_used_up": FaultKind(
        "max_connections is reached, and the clients' are cut",
        server_faults.use_up_connections,
        longest_seconds=4,
        lasting_seconds=16,
    ),
    "master_failover": FaultKind(
        "the primary dies, a synchronous standby is promoted",
        server_faults.fail_over_master,
        longest_seconds=0.1,
        needs=_standby,
    ),
    # the stores
    "store_kill": FaultKind("SIGKILL to a store, and start", server_faults.kill_store, LOG_LOST),
    "store_freeze": FaultKind("SIGSTOP to a store", server_faults.freeze_store, longest_seconds=6, lasting_seconds=60),
    "store_flushed": FaultKind("FLUSHALL", server_faults.flush_store, STORE_LOST),
    "store_log_cut": FaultKind(
        "killed, the tail of its log cut off, started", server_faults.cut_log, LOG_LOST, needs=_single
    ),
    "store_failover": FaultKind("a replica that lags takes over", server_faults.fail_over_store, STORE_LOST, 1.5),
    "store_connections_used_up": FaultKind(
        "maxclients is reached, and the clients' are cut",
        server_faults.use_up_clients,
        longest_seconds=4,
        lasting_seconds=20,
    ),
    "store_memory_full": FaultKind(
        "maxmemory is reached", server_faults.fill_memory, longest_seconds=4, lasting_seconds=30
    ),
    # a store of several servers
    "sentinel_primary_kill": FaultKind(
        "SIGKILL to the primary; Sentinels promote its replica, and it comes back as one",
        server_faults.kill_primary,
        LOG_LOST,
        longest_seconds=4,
        needs=_watched,
    ),
    "sentinel_failover": FaultKind(
        "a Sentinel is told to exchange primary and replica",
        server_faults.command_failover,
        LOG_LOST,
        needs=_watched,
    ),
    "node_kill": FaultKind(
        "SIGKILL to a primary of a Valkey Cluster; its replica takes over, and it comes back as one",
        server_faults.kill_primary,
        LOG_LOST,
        longest_seconds=4,
        needs=_clustered,
    ),
    "node_failover": FaultKind(
        "a replica in a Valkey Cluster is told to take over", server_faults.command_failover, LOG_LOST, needs=_clustered
    ),
    "slots_moved": FaultKind(
        "hash slots of all buckets of a node move to another one, key by key and at once",
        server_faults.move_slots,
        needs=_clustered,
    ),
    # disks
    "disk_stalled": FaultKind(
        "no write and no fsync ends", server_faults.stall_disk, longest_seconds=4, lasting_seconds=16, needs=_disks
    ),
    "disk_slow": FaultKind(
        "every fsync takes up to 0.3 s", server_faults.slow_disk, longest_seconds=5, lasting_seconds=30, needs=_disks
    ),
    "disk_full": FaultKind(
        "not a byte is left", server_faults.fill_disk, longest_seconds=4, lasting_seconds=16, needs=_disks
    ),
    # the network
    "network_slow": FaultKind("delay and jitter", network_faults.slow, longest_seconds=6, lasting_seconds=30),
    "network_narrow": FaultKind("little bandwidth", network_faults.narrow, longest_seconds=5, lasting_seconds=20),
    "network_cut": FaultKind("every connection of a route is reset", network_faults.cut),
    "requests_held": FaultKind(
        "requests vanish, in silence", network_faults.hold_requests, longest_seconds=6, lasting_seconds=30
    ),
    "answers_held": FaultKind(
        "requests arrive, answers vanish", network_faults.hold_answers, longest_seconds=6, lasting_seconds=20
    ),
    "half_open": FaultKind(
        "the server's end is gone, the client's is not", network_faults.half_open, longest_seconds=6, lasting_seconds=20
    ),
    "refused": FaultKind(
        "connections are reset as soon as they are made", network_faults.refuse, longest_seconds=4, lasting_seconds=20
    ),
    "replies_lost": FaultKind(
        "answers are lost after the effect", network_faults.lose_replies, longest_seconds=4, lasting_seconds=20
    ),
}
"""Every kind of fault, by name."""


FIRST_LASTING = ("store_freeze", "store_memory_full", "master_outage")
"""Long faults that come first: a silent store, a full store, a master that is away."""


def available(targets: Targets, catalogue: Mapping[str, FaultKind] = KINDS) -> tuple[list[str], dict[str, str]]:
    """Kinds that are possible here, and why the others are not."""
    reasons = {name: kind.needs(targets) for name, kind in catalogue.items()}
    return [name for name, why in reasons.items() if why is None], {n: why for n, why in reasons.items() if why}
