"""A host whose agents die again and again gets no buckets that other hosts can have, for a while."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, cast

from jobmaster.doctor.findings import CheckStatus
from jobmaster.doctor.life import hosts_finding
from jobmaster.model.job import Priority
from jobmaster.settings.model import AgentSettings, BucketCounts, Safety
from jobmaster_agents.buckets.host_standing import HostStanding
from jobmaster_agents.buckets.provisioner import BucketProvisioner
from jobmaster_agents.event_log import EventLog
from jobmaster_agents.state.ownership import OwnedBucket
from tests.integration.agents.fixture import DrivenCluster, Owner

ONE = BucketCounts(**{each.label: int(each is Priority.MEDIUM) for each in Priority})
_DIED = """
INSERT INTO agent (id, name, host, pid, version, mode, store, weight, state, lease_until, lease_seconds, ended_at)
SELECT gen_random_uuid(), 'gone', $1, 1, '0', 'full', 'default', 1, 'DEAD', clock_timestamp(), 1,
       date_trunc('minute', clock_timestamp()) - make_interval(secs => $2 * n)
FROM generate_series(1, $3::integer) AS n
"""


class _Worker:
    """The bucket worker, as the provisioner uses it: it keeps what was opened and what is to be done later."""

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.later: list[Callable[[], Coroutine[object, object, None]]] = []

    async def until_answered(self, name: str, call: Callable[[], Awaitable[Any]], *, refusals: bool) -> Any:
        return await call()

    def open(self, owned: OwnedBucket) -> None:
        self.owner.ownership.add(owned)

    def spawn(self, work: Callable[[], Coroutine[object, object, None]]) -> None:
        self.later.append(work)

    def lanes(self) -> set[str]:
        return {each.lane for each in self.owner.ownership.buckets.values()}


def _provisioner(owner: Owner, worker: _Worker, lanes: list[str]) -> BucketProvisioner:
    agent = AgentSettings(lanes=dict.fromkeys(lanes, ONE))
    made = BucketProvisioner(
        agent, owner.master, owner.store, "default", owner.ownership, cast("Any", worker), lambda: False, EventLog()
    )
    made.host_standing = HostStanding(owner.agent_id, owner.master.members, Safety(), EventLog())
    return made


async def test_a_flapping_host_opens_only_what_no_other_host_serves_until_its_time_is_over(
    driven: DrivenCluster,
) -> None:
    here, there = await driven.owner(), await driven.owner()
    await driven.rows("UPDATE agent SET host = 'there' WHERE id = $1::text::uuid", _text(there.agent_id))
    worker = _Worker(here)
    provisioner = _provisioner(here, worker, ["alone", there.lane])
    await driven.rows(_DIED, "here", 0.0, 40)
    await driven.rows(_DIED, "here", 60.0, 3)
    assert (await driven.finding(hosts_finding))[0] is CheckStatus.OK, (
        "all agents of a machine die at once when it restarts"
    )

    await driven.rows(_DIED, "here", 240.0, 3)
    status, detail = await driven.finding(hosts_finding)
    assert status is CheckStatus.WARN
    assert detail.startswith("here is cordoned for ")
    await provisioner.open_all()
    assert worker.lanes() == {"alone"}

    await driven.rows("UPDATE bucket SET state = 'LOST' WHERE owner = $1::text::uuid", _text(there.agent_id))
    await provisioner._reconcile()
    assert worker.lanes() == {"alone", there.lane}, "no other host is left"

    await driven.rows("UPDATE agent SET ended_at = ended_at - interval '16 minutes' WHERE state = 'DEAD'")
    assert (await driven.finding(hosts_finding))[0] is CheckStatus.OK, "it ends by itself"


def _text(id_: bytes) -> str:
    return id_.hex()
