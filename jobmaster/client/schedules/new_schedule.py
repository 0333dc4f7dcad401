"""A schedule that is to be put, with others in one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Unpack

from jobmaster.handlers import Call
from jobmaster.handlers.schedules import ScheduleOptions, When


class NewSchedule:
    """One schedule of ``schedules.put_many``.

    Args:
        name: of the schedule in the cluster.
        when: a cron expression, a timedelta, a duration such as ``"5m"``, or seconds.
        handler: the call to be made; or the declared function or its name, and ``args``.
        options: see ``ScheduleOptions``.
    """

    __slots__ = ("args", "handler", "name", "options", "when")

    def __init__(
        self,
        name: str,
        when: When,
        handler: Call[Any] | Callable[..., Any] | str,
        args: Mapping[str, object] | None = None,
        /,
        **options: Unpack[ScheduleOptions],
    ) -> None:
        self.name = name
        self.when = when
        self.handler = handler
        self.args = args
        self.options = options
