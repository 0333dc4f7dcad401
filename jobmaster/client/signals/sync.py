"""``SyncCluster.signals``: the same for code without an event loop."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Literal

from jobmaster.client.signals.signals import ACTOR, SignalId
from jobmaster.model.flow.signal import KeptSignal, Recipients, SignalSent, WaitingJobs

if TYPE_CHECKING:
    from jobmaster.client.sync import SyncCluster


class SyncSignals:
    """The signals of a cluster. Made by ``SyncCluster``."""

    def __init__(self, cluster: SyncCluster) -> None:
        self._cluster = cluster

    def send(
        self,
        key: str,
        payload: object = None,
        *,
        to: Recipients | Literal["all", "one"] = Recipients.ALL,
        keep_for: float | timedelta | None = None,
        signal_id: SignalId | None = None,
        actor: str = ACTOR,
    ) -> SignalSent:
        """See ``Signals.send``."""
        return self._cluster._call(
            lambda cluster: cluster.signals.send(
                key, payload, to=to, keep_for=keep_for, signal_id=signal_id, actor=actor
            )
        )

    def waiting(self, key: str | None = None) -> list[WaitingJobs]:
        """See ``Signals.waiting``."""
        return self._cluster._call(lambda cluster: cluster.signals.waiting(key))

    def kept(self, key: str | None = None) -> list[KeptSignal]:
        """See ``Signals.kept``."""
        return self._cluster._call(lambda cluster: cluster.signals.kept(key))
