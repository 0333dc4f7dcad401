"""``SyncCluster.schedules``: the same for code without an event loop."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Unpack

from jobmaster.client.schedules.new_schedule import NewSchedule
from jobmaster.client.schedules.schedules import ACTOR
from jobmaster.handlers import Call
from jobmaster.handlers.schedules import ScheduleOptions, When
from jobmaster.model.inspection.schedule_view import FireView, ScheduleView

if TYPE_CHECKING:
    from jobmaster.client.sync import SyncCluster, SyncReceipt


class SyncSchedules:
    """The schedules of a cluster. Made by ``SyncCluster``."""

    def __init__(self, cluster: SyncCluster) -> None:
        self._cluster = cluster

    def put(
        self,
        name: str,
        when: When,
        handler: Call[Any] | Callable[..., Any] | str,
        args: Mapping[str, object] | None = None,
        /,
        **options: Unpack[ScheduleOptions],
    ) -> ScheduleView:
        """See ``Schedules.put``."""
        return self._cluster._call(lambda cluster: cluster.schedules.put(name, when, handler, args, **options))

    def put_many(self, schedules: Iterable[NewSchedule], /) -> builtins.list[ScheduleView]:
        """See ``Schedules.put_many``."""
        given = [*schedules]
        return self._cluster._call(lambda cluster: cluster.schedules.put_many(given))

    def get(self, name: str) -> ScheduleView:
        """See ``Schedules.get``."""
        return self._cluster._call(lambda cluster: cluster.schedules.get(name))

    def list(self, *, tag: str | None = None, retired: bool = False) -> builtins.list[ScheduleView]:
        """See ``Schedules.list``."""
        return self._cluster._call(lambda cluster: cluster.schedules.list(tag=tag, retired=retired))

    def pause(
        self, name: str | None = None, *, tag: str | None = None, reason: str = "", actor: str = ACTOR
    ) -> builtins.list[str]:
        """See ``Schedules.pause``."""
        return self._cluster._call(lambda cluster: cluster.schedules.pause(name, tag=tag, reason=reason, actor=actor))

    def resume(self, name: str | None = None, *, tag: str | None = None, actor: str = ACTOR) -> builtins.list[str]:
        """See ``Schedules.resume``."""
        return self._cluster._call(lambda cluster: cluster.schedules.resume(name, tag=tag, actor=actor))

    def remove(self, name: str | None = None, *, tag: str | None = None, actor: str = ACTOR) -> builtins.list[str]:
        """See ``Schedules.remove``."""
        return self._cluster._call(lambda cluster: cluster.schedules.remove(name, tag=tag, actor=actor))

    def run(self, name: str, *, actor: str = ACTOR) -> SyncReceipt[Any]:
        """See ``Schedules.run``."""
        receipt = self._cluster._call(lambda cluster: cluster.schedules.run(name, actor=actor))
        return self._cluster._receipt(receipt)

    def next(self, name: str, count: int = 5) -> builtins.list[datetime]:
        """See ``Schedules.next``."""
        return self._cluster._call(lambda cluster: cluster.schedules.next(name, count))

    def fires(self, name: str, *, limit: int = 50) -> builtins.list[FireView]:
        """See ``Schedules.fires``."""
        return self._cluster._call(lambda cluster: cluster.schedules.fires(name, limit=limit))
