"""``cluster.schedules``: definitions of recurring jobs, and what a person does to them."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Unpack

from jobmaster.client.handler_lookup import HandlerLookup
from jobmaster.client.receipts import JobReceipt
from jobmaster.client.schedules.new_schedule import NewSchedule
from jobmaster.client.submitter import SubmitChecks
from jobmaster.clock import new_id
from jobmaster.codec import encode_fire_headers
from jobmaster.handlers import Call
from jobmaster.handlers.call import parts
from jobmaster.handlers.schedules import ScheduleOptions, When, check_schedule_name, declare_encoded
from jobmaster.model.errors import Conflict, InputError, NotFound
from jobmaster.model.ids import text
from jobmaster.model.inspection.schedule_view import FireView, ScheduleView, fire_view, view_of
from jobmaster.model.job import Durability
from jobmaster.model.job_view import moment
from jobmaster.model.schedule import FireOutcome, Schedule, ScheduleRow, ScheduleSource
from jobmaster.model.suggestion import did_you_mean
from jobmaster.ports import ScheduleMaster
from jobmaster.rules.recurrence import next_fire_us, upcoming_us
from jobmaster.settings.model import ClusterSettings
from jobmaster.settings.schedules import schedule_defaults

if TYPE_CHECKING:
    from jobmaster.client.cluster import Cluster

PAGE = 1000
"""Schedules of one statement."""
FIRES_MAX = 1000
"""Fires that one call computes or reads."""
CHANGES_MAX = 5
"""Changes of a schedule by others that one call overtakes."""
UNKNOWN_HINT = "declare it in this process, or start an agent that has it"
ACTOR = "client"


class Schedules:
    """The schedules of a cluster. Made by ``Cluster``.

    ::

        await cluster.schedules.put("nightly", "0 3 * * *", call(report, "yesterday"), zone="Europe/Berlin")
        await cluster.schedules.pause("nightly", reason="audit")
    """

    def __init__(
        self, cluster: Cluster, master: ScheduleMaster, settings: ClusterSettings, checks: SubmitChecks
    ) -> None:
        self._cluster = cluster
        self._master = master
        self._settings = settings
        self._checks = checks

    @property
    def _lookup(self) -> HandlerLookup:
        return self._checks.handler_lookup

    # ------------------------------------------------------------ definitions

    async def put(
        self,
        name: str,
        when: When,
        handler: Call[Any] | Callable[..., Any] | str,
        args: Mapping[str, object] | None = None,
        /,
        **options: Unpack[ScheduleOptions],
    ) -> ScheduleView:
        """Store a schedule under a name, new or in place of the one that is there. It lives until it is removed.

        A change takes effect at once: jobs of the old definition that are made already and whose time lies ahead are
        cancelled. A pause stays.

        Args:
            name: of the schedule in the cluster.
            when: a cron expression, a timedelta, a duration such as ``"5m"``, or seconds.
            handler: the call to be made; or the declared function or its name, and ``args``.
            options: see ``ScheduleOptions``.

        Raises:
            InputError: it could never work (name, time, zone, handler, arguments, options); nothing was stored.
                ``UnknownLane``: no agent serves its lane.
            Conflict: agents declare a schedule of this name.
            OutcomeUnknown: call it again.
        """
        new = NewSchedule(name, when, handler, args, **options)
        definition = await self._definition(new, await self._master.queries.now_us())
        if await self._master.schedules.put([definition], next_fire_us):
            raise _declared([name])
        return await self.get(name)

    async def put_many(self, schedules: Iterable[NewSchedule], /) -> builtins.list[ScheduleView]:
        """Store many schedules, each as by ``put``, in one statement for a thousand of them.

        All are checked before the first is stored. Where one name is taken by an agent while the call runs, the others are
        stored.

        Returns: the stored schedules, in the order in which they were given.

        Raises:
            InputError: one of them could never work, or two have one name; nothing was stored.
            Conflict: agents declare schedules of these names; nothing was stored.
            OutcomeUnknown: call it again.
        """
        given, now_us = [*schedules], await self._master.queries.now_us()
        definitions: dict[str, Schedule] = {}
        for new in given:
            if not isinstance(new, NewSchedule):
                raise InputError(
                    f"{new!r} is no NewSchedule", hint='NewSchedule("nightly", "0 3 * * *", "reports.build")'
                )
            definition = await self._definition(new, now_us)
            if definition.name in definitions:
                raise InputError(f"two of the schedules are called {new.name!r}", hint="a name stands for one schedule")
            definitions[definition.name] = definition
        there = await self._named(definitions)
        if taken := [
            name for name, row in there.items() if row.source is not ScheduleSource.API and row.retired_us is None
        ]:
            raise _declared(taken)
        if taken := await self._master.schedules.put([*definitions.values()], next_fire_us):
            raise _declared(taken)
        stored = await self._named(definitions)
        return [view_of(stored[name], _coming_us(stored[name])) for name in definitions if name in stored]

    async def _definition(self, new: NewSchedule, now_us: int) -> Schedule:
        """What is stored; ``InputError`` names the schedule."""
        name, handler, args = new.name, new.handler, new.args
        if isinstance(handler, Call):
            handler, args = parts(handler, args)
        try:
            resolved = await self._lookup.find(handler, allow_unregistered=False, hint=UNKNOWN_HINT)
            self._checks.refuse_plain(resolved.name, "a schedule")
            data = self._checks.encode(resolved, args)
            if resolved.handler is None:
                await self._lookup.check(resolved, data, allow_unregistered=False)
            declared = declare_encoded(name, new.when, resolved.name, data, new.options)._replace(
                handler_lane=resolved.lane,
                handler_priority=resolved.priority,
                handler_limited=resolved.limited,
                handler_tenant=resolved.tenant,
                source=ScheduleSource.API,
                ordering_key=None if resolved.ordering is None else resolved.ordering(data),
            )
            definition = declared.resolve(schedule_defaults(self._settings))
            await self._cluster._router().check_served(definition.lane)
            if next_fire_us(definition, now_us) is None:
                raise InputError(f"{definition.expression!r} never fires from now on", hint="give a later 'end'")
        except InputError as error:
            raise type(error)(f"schedule {name!r}: {error.message}", hint=error.hint) from None
        return definition

    async def _named(self, names: Iterable[str]) -> dict[str, ScheduleRow]:
        """The rows of these names, retired ones included."""
        wanted, found = sorted(names), dict[str, ScheduleRow]()
        for at in range(0, len(wanted), PAGE):
            page = await self._master.schedules.list(wanted[at : at + PAGE], retired=True, limit=PAGE)
            found |= {row.schedule.name: row for row in page}
        return found

    async def get(self, name: str) -> ScheduleView:
        """One schedule, a retired one included; ``NotFound`` when there is none of this name."""
        row = await self._row(name)
        return view_of(row, _coming_us(row))

    async def list(self, *, tag: str | None = None, retired: bool = False) -> builtins.list[ScheduleView]:
        """Schedules in the order of their names.

        Args:
            tag: only those with this tag.
            retired: those that were removed, or that no living agent declares any more, too.
        """
        return [view_of(row, _coming_us(row)) for row in await self._pages(tag=tag, retired=retired)]

    # ------------------------------------------------------------ what a person does

    async def pause(
        self, name: str | None = None, *, tag: str | None = None, reason: str = "", actor: str = ACTOR
    ) -> builtins.list[str]:
        """Pause a schedule, or all with a tag: nothing of them fires until ``resume``. Jobs that were made ahead of their
        time are cancelled. What falls into the pause is not made up for.

        Args:
            name, tag: one of the two.

        Returns: the names of those that were paused now.

        Raises:
            NotFound: there is no schedule of that name, or none with that tag.
        """
        await self._rows(name, tag)
        return await self._master.schedules.pause(None if name is None else [name], tag, actor, reason)

    async def resume(
        self, name: str | None = None, *, tag: str | None = None, actor: str = ACTOR
    ) -> builtins.list[str]:
        """End the pause of a schedule, or of all with a tag; the next nominal time after now is the first that fires.

        Returns: the names of those that were resumed now; of one that was not paused, nothing.

        Raises:
            NotFound: there is no schedule of that name, or none with that tag.
            Conflict: others changed a schedule again and again meanwhile; it is still paused.
        """
        paused = [row for row in await self._rows(name, tag) if row.paused_us is not None]
        resumed: builtins.list[str] = []
        for _ in range(CHANGES_MAX):
            if not paused:
                break
            resumed += await self._master.schedules.resume(paused, next_fire_us, actor)
            paused = await self._still_paused({row.schedule.name for row in paused}.difference(resumed))
        if paused:
            names = ", ".join(repr(row.schedule.name) for row in paused)
            raise Conflict(f"changed again and again meanwhile, and still paused: schedule {names}", hint="try again")
        return sorted(resumed)

    async def remove(
        self, name: str | None = None, *, tag: str | None = None, actor: str = ACTOR
    ) -> builtins.list[str]:
        """Retire a schedule, or all with a tag, and cancel its jobs whose time lies ahead. What runs may end.

        One that agents declare comes back when an agent is started that declares it: take it out of the code, or pause it.

        Returns: the names of those that were removed now. Raises as ``pause``.
        """
        await self._rows(name, tag)
        return await self._master.schedules.remove(None if name is None else [name], tag, actor)

    async def run(self, name: str, *, actor: str = ACTOR) -> JobReceipt[Any]:
        """Fire a schedule now, beside its recurrence, also while it is paused. Its overlap rule counts.

        Returns: the receipt of the job.

        Raises:
            NotFound: there is no schedule of that name.
            Conflict: it is retired; or a job of an earlier fire has not ended and the rule is ``skip`` or ``queue``.
        """
        job_id = new_id()
        for _ in range(CHANGES_MAX):
            row = await self._row(name)
            if row.retired_us is not None:
                raise Conflict(f"schedule {name!r} is retired: {row.retired_reason}", hint="declare or put it again")
            now_us = await self._master.queries.now_us()
            traces = self._cluster.traces
            headers = encode_fire_headers(row.schedule, now_us, now_us, None if traces is None else traces.context())
            answer = await self._master.schedules.run_now(row, job_id, now_us, headers, actor)
            if answer is not None and answer.outcome is FireOutcome.FIRED:
                await self._cluster._hint_after_commit(answer.lane, answer.priority)
                return JobReceipt(self._cluster, job_id, Durability.MASTER, None, False, False)
            if answer is not None:
                blocking = "of an earlier fire" if answer.previous is None else text(answer.previous)
                raise Conflict(
                    f"schedule {name!r} was not run: job {blocking} has not ended, and its overlap rule is "
                    f"{row.schedule.overlap.value}",
                    hint="wait for that job, or cancel it",
                )
        raise Conflict(f"schedule {name!r} was changed again and again meanwhile", hint="try again")

    # ------------------------------------------------------------ times

    async def next(self, name: str, count: int = 5) -> builtins.list[datetime]:
        """The next nominal times of a schedule (aware, UTC), also of a paused one; fewer when it ends before, and none of a
        retired one.

        Args:
            count: 1 to 1000.

        Raises:
            NotFound: there is no schedule of that name.
        """
        limit, row = _bounded(count), await self._row(name)
        found = [] if row.retired_us is not None else upcoming_us(row.schedule, row.now_us, limit)
        return [at for us in found if (at := moment(us)) is not None]

    async def fires(self, name: str, *, limit: int = 50) -> builtins.list[FireView]:
        """The newest decided fires of a schedule: with a job, skipped or missed.

        Raises:
            NotFound: there is no schedule of that name.
        """
        await self._row(name)
        return [fire_view(fire) for fire in await self._master.schedules.fires(name, _bounded(limit))]

    async def _row(self, name: str) -> ScheduleRow:
        check_schedule_name(name)
        rows = await self._master.schedules.list(names=[name], retired=True, limit=1)
        if not rows:
            near = did_you_mean(name, [row.schedule.name for row in await self._pages()])
            raise NotFound(f"there is no schedule {name!r}", hint=near)
        return rows[0]

    async def _rows(self, name: str | None, tag: str | None) -> builtins.list[ScheduleRow]:
        """Those that are named, by name or by tag."""
        if (name is None) == (tag is None):
            raise InputError("name one schedule, or a tag")
        if name is not None:
            return [await self._row(name)]
        rows = await self._pages(tag=tag)
        if not rows:
            raise NotFound(f"there is no schedule with the tag {tag!r}")
        return rows

    async def _still_paused(self, names: set[str]) -> builtins.list[ScheduleRow]:
        """Those of these that are paused now, as they are now."""
        found: builtins.list[ScheduleRow] = []
        for name in sorted(names):
            found += await self._master.schedules.list(names=[name], retired=True, limit=1)
        return [row for row in found if row.paused_us is not None]

    async def _pages(self, *, tag: str | None = None, retired: bool = False) -> builtins.list[ScheduleRow]:
        found: builtins.list[ScheduleRow] = []
        while True:
            after = found[-1].schedule.name if found else ""
            page = await self._master.schedules.list(tag=tag, retired=retired, after=after, limit=PAGE)
            found += page
            if len(page) < PAGE:
                return found


def _declared(names: Sequence[str]) -> Conflict:
    listed = ", ".join(map(repr, names[:5])) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    what = f"schedule {listed} is" if len(names) == 1 else f"the schedules {listed} are"
    one = "it" if len(names) == 1 else "them"
    return Conflict(
        f"{what} declared by agents, in their code or configuration",
        hint=f"change {one} there, or choose another name",
    )


def _coming_us(row: ScheduleRow) -> int | None:
    """The next nominal time, microseconds since 1970: one that nothing has decided yet, or one whose job is made ahead."""
    if row.next_us is not None and row.next_us <= row.now_us:
        return row.next_us
    try:
        return next_fire_us(row.schedule, row.now_us)
    except InputError:  # another version of the recurrence, or of the zones, has accepted it
        return row.next_us


def _bounded(count: object) -> int:
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= FIRES_MAX:
        raise InputError(f"the number of fires must be from 1 to {FIRES_MAX}, not {count!r}")
    return count
