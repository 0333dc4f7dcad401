"""The catalogue of the laboratory: faults of links, hosts, disks and clocks, which a loopback cannot show."""

from __future__ import annotations

from tests.chaos.faults.catalogue import LOG_LOST, FaultKind
from tests.chaos.faults.targets import Targets
from tests.lab.faults import clock_faults, host_faults, link_faults
from tests.lab.faults.targets import lab

_FORGETS_SECONDS = 10.0
"""A log that is synced every second may be two seconds behind; the rest is for a machine with three times its load."""


def _delays(targets: Targets) -> str | None:
    return lab(targets).net.no_delay


def _disks(targets: Targets) -> str | None:
    return lab(targets).lab_servers.no_power_cuts


def _clocks(targets: Targets) -> str | None:
    return lab(targets).host_clocks.unavailable


KINDS: dict[str, FaultKind] = {
    "link_down": FaultKind(
        "the link of a host is down, silent both ways", link_faults.take_link_down, longest_seconds=8
    ),
    "link_flaps": FaultKind(
        "a link goes down and up several times a second: loss", link_faults.flap_link, longest_seconds=6
    ),
    "link_narrow": FaultKind(
        "2 Mbit/s to a host and a short queue: delay and loss", link_faults.narrow_link, longest_seconds=6
    ),
    "link_delayed": FaultKind(
        "delay, jitter and loss towards a host (netem)", link_faults.delay_link, longest_seconds=6, needs=_delays
    ),
    "receives_nothing": FaultKind(
        "a host sends, and nothing reaches it", link_faults.receive_nothing, longest_seconds=8
    ),
    "sends_nothing": FaultKind(
        "everything reaches a host, and nothing leaves it", link_faults.send_nothing, longest_seconds=8
    ),
    "pair_silent": FaultKind(
        "a client's host and a server's do not reach each other", link_faults.silence_pair, longest_seconds=8
    ),
    "way_silent": FaultKind(
        "one way between a client's host and a server's is silent", link_faults.silence_way, longest_seconds=8
    ),
    "partitions": FaultKind(
        "two partitions of all hosts that overlap", link_faults.overlap_partitions, longest_seconds=8
    ),
    "standby_cut_off": FaultKind(
        "primary and standby do not reach each other: commits wait", link_faults.cut_standby_off, longest_seconds=6
    ),
    "agents_vanish": FaultKind(
        "a host of agents vanishes with its supervisors", host_faults.vanish_agents, longest_seconds=10
    ),
    "producer_vanishes": FaultKind("a producer's host vanishes", host_faults.vanish_producer, longest_seconds=6),
    "store_vanishes": FaultKind(
        "a store's host vanishes, and comes back", host_faults.vanish_store, LOG_LOST, longest_seconds=6
    ),
    "primary_vanishes": FaultKind(
        "the primary's host vanishes, the synchronous standby is promoted",
        host_faults.vanish_primary,
        longest_seconds=6,
    ),
    "standby_vanishes": FaultKind(
        "the standby's host vanishes: commits wait", host_faults.vanish_standby, longest_seconds=5
    ),
    "store_power_cut": FaultKind(
        "a store's host loses its power",
        host_faults.cut_store,
        LOG_LOST,
        longest_seconds=6,
        needs=_disks,
        forgets_seconds=_FORGETS_SECONDS,
    ),
    "primary_power_cut": FaultKind(
        "the primary's host loses its power, and comes back as the primary",
        host_faults.cut_primary,
        longest_seconds=5,
        needs=_disks,
    ),
    "standby_power_cut": FaultKind(
        "the standby's host loses its power: commits wait", host_faults.cut_standby, longest_seconds=5, needs=_disks
    ),
    "databases_power_cut": FaultKind(
        "the hosts of primary and standby lose their power at once",
        host_faults.cut_databases,
        longest_seconds=5,
        needs=_disks,
    ),
    "power_cut": FaultKind(
        "all hosts lose their power at once",
        host_faults.cut_all,
        LOG_LOST,
        longest_seconds=5,
        needs=_disks,
        forgets_seconds=_FORGETS_SECONDS,
    ),
    "agents_clock_step": FaultKind(
        "the wall clock of a host of agents is off by up to an hour",
        clock_faults.step_agents,
        longest_seconds=6,
        needs=_clocks,
    ),
    "producer_clock_step": FaultKind(
        "the wall clock of a producer's host is off by up to 30 s",
        clock_faults.step_producer,
        longest_seconds=6,
        needs=_clocks,
    ),
    "store_clock_step": FaultKind(
        "the wall clock of a store's host goes back by up to 10 minutes, or is 0.3 s off",
        clock_faults.step_store,
        longest_seconds=6,
        needs=_clocks,
    ),
    "master_clock_step": FaultKind(
        "the wall clocks of primary and standby go back by up to a minute, or are 0.3 s off",
        clock_faults.step_master,
        longest_seconds=6,
        needs=_clocks,
    ),
}
"""Every kind of fault of the laboratory, by name."""
