"""Wall clocks of hosts are stepped, and stepped back when the fault is healed."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tests.chaos.faults.targets import MISSED, InjectedFault, Targets
from tests.lab.faults.targets import AGENT_HOSTS, DATABASE_HOSTS, PRODUCER_HOSTS, lab
from tests.lab.servers import STORE_HOSTS

_AGENT_SECONDS = (-3600, -600, -30, 30, 600, 3600)
_PRODUCER_SECONDS = (-30, -5, 5, 30)
"""A producer whose clock is ahead makes its jobs due that much later, so the jobs of the run must not wait for an hour."""
_STORE_SECONDS = (-600, -5, -0.3, 0.3)
_MASTER_SECONDS = (-60, -20, -0.3, 0.3)
"""0.3 s are less than what an owner stops before the end of its lease. What is longer goes back first: the step to the right
time is then one forward by more than a lease, after which no agent may certify a death for a term."""


def step_agents(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    return _one_stepped(targets, rng, seconds, sorted(set(AGENT_HOSTS.values())), _AGENT_SECONDS)


def step_producer(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    return _one_stepped(targets, rng, seconds, list(PRODUCER_HOSTS.values()), _PRODUCER_SECONDS)


def step_store(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    return _one_stepped(targets, rng, seconds, list(STORE_HOSTS.values()), _STORE_SECONDS)


def step_master(targets: Targets, rng: random.Random, seconds: float) -> InjectedFault:
    """The primary's and the standby's, so that a promotion is no second step."""
    return _stepped(targets, seconds, sorted(DATABASE_HOSTS), rng.choice(_MASTER_SECONDS))


def _one_stepped(
    targets: Targets, rng: random.Random, seconds: float, hosts: Sequence[str], offs: Sequence[float]
) -> InjectedFault:
    return _stepped(targets, seconds, [rng.choice(hosts)], rng.choice(offs))


def _stepped(targets: Targets, seconds: float, hosts: Sequence[str], off: float) -> InjectedFault:
    """Whatever else happens to the hosts meanwhile; but no clock has two steps at once."""
    at = lab(targets)
    clocks = {f"clock of {host}" for host in hosts}
    if clocks & at.busy:
        return MISSED
    at.busy |= clocks
    for host in hosts:
        at.host_clocks.step(host, off)

    def heal() -> None:
        for host in hosts:
            at.host_clocks.step(host, 0.0)
        at.busy -= clocks

    return InjectedFault(f"{'+'.join(hosts)} by {off:g} s for {seconds:g} s", heal)
