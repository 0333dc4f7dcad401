"""Whether this agent's host is cordoned: its agents died again and again, and other hosts can have its buckets.

A host is *cordoned* when its agents got death certificates in ``safety.flapping_deaths`` different minutes of an hour, until
``safety.cordon`` after the last one. Its agents open no bucket of a lane and priority that another host serves with all of
their handlers; what only this host serves is opened as ever, so a cluster on one machine is never stopped. The rule is read
from the rows of the dead agents, so it holds for a process that has just been started, and it ends by itself.
"""

from __future__ import annotations

from jobmaster.model.errors import CodeError, JobMasterError
from jobmaster.ports import HostMembers
from jobmaster.settings.model import Safety
from jobmaster_agents.event_log import Event, EventLog

AGAIN_SECONDS_MAX = 60.0
"""Longest pause before an agent that got no bucket asks again: those of the other hosts may be gone."""

Group = tuple[str, int]
"""Lane and priority."""


class HostStanding:
    """Asks before buckets are opened, and logs when the answer changes."""

    def __init__(self, agent_id: bytes, members: HostMembers, safety: Safety, log: EventLog) -> None:
        self._agent_id = agent_id
        self._members = members
        self._safety = safety
        self._log = log
        self._cordoned = False

    async def withheld(self) -> tuple[frozenset[Group], float]:
        """Lanes and priorities in which the agent opens no bucket now, and the seconds until it should ask again."""
        if not self._safety.flapping_deaths:
            return frozenset(), AGAIN_SECONDS_MAX
        try:
            found = await self._members.host_standing(
                self._agent_id, self._safety.flapping_deaths, self._safety.cordon_seconds
            )
        except CodeError:
            raise
        except JobMasterError:  # advice: without an answer, buckets are opened (and that will wait for the master)
            return frozenset(), AGAIN_SECONDS_MAX
        if found is None:
            if self._cordoned:
                self._cordoned = False
                self._log.info(Event.HOST_UNCORDONED, {})
            return frozenset(), AGAIN_SECONDS_MAX
        if not self._cordoned and found.served:
            self._cordoned = True
            fields = {"host": found.host, "deaths": found.deaths, "seconds_left": found.left_seconds}
            self._log.warning(Event.HOST_CORDONED, fields)
        return found.served, min(max(found.left_seconds, 0.0) + 1.0, AGAIN_SECONDS_MAX)
