"""What is done about evidence that ownership, a store or an agent is not what it should be: a warning, or a freeze.

``safety.on_suspicion: warn`` logs it and records it in the operator's log of the master (``jobmaster doctor`` shows it for a
day). ``freeze`` does what an operator would do with ``jobmaster bucket freeze``, too. Each kind and subject is recorded once
an hour, and buckets are frozen only then: an operator who unfreezes them within the hour is not opposed.
"""

from __future__ import annotations

from collections.abc import Sequence

from jobmaster.ports import SuspicionMaster
from jobmaster.settings.model import OnSuspicion
from jobmaster_agents.event_log import Event, EventLog

ACTOR = "jobmaster"
"""In the operator's log and the history of buckets."""


class Suspicions:
    """Records suspicions, and freezes buckets if the configuration says so."""

    def __init__(self, master: SuspicionMaster, rule: OnSuspicion, log: EventLog) -> None:
        self._master = master
        self._rule = rule
        self._log = log

    async def raise_suspicion(self, kind: str, subject: str, bucket_ids: Sequence[bytes], detail: str) -> None:
        """Act on evidence.

        Args:
            kind: ``two_owners``, ``store_losses`` or ``refused_outcomes``.
            subject: what is suspicious: a bucket, a store or an agent.
            bucket_ids: buckets that are concerned; those that are ACTIVE are frozen.
        """
        freezes = self._rule is OnSuspicion.FREEZE and bool(bucket_ids)
        if not await self._master.maintenance.note_suspicion(kind, subject, detail, freezes=freezes):
            return
        fields = {"kind": kind, "subject": subject, "detail": detail}
        if not freezes:
            self._log.error(Event.SUSPICION, fields)
            return
        frozen = await self._master.buckets.freeze(bucket_ids, None, ACTOR, f"{kind}: {detail}")
        self._log.error(Event.SUSPICION, {**fields, "frozen": len(frozen)})
