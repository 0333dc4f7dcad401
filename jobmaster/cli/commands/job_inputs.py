"""What the commands about jobs share: durations, times and priorities as options, ids, and the cluster of a command."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from jobmaster.cli.failures import failure_of
from jobmaster.cli.id_prefix import id_range
from jobmaster.cli.running import reader_of
from jobmaster.cli.tables import Column, Output, emit_rows
from jobmaster.model.errors import Conflict, InputError, InvalidDueTime, JobMasterError, NotFound
from jobmaster.model.ids import text
from jobmaster.model.job import JobState, Priority

if TYPE_CHECKING:
    from jobmaster.client.cluster import Cluster
    from jobmaster.model.job_view import JobView
    from jobmaster.model.pause import Pause
    from jobmaster.settings.model import ClusterSettings

ERRORS_NAMED_MAX = 3
"""Errors in the message of a command about several jobs. The table has them all."""
PRIORITIES = [level.label for level in reversed(Priority)]


class Duration(click.ParamType):  # type: ignore[type-arg]  # no generic class before click 8.4
    """``30s``, ``5m``, ``1h30m`` or plain seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        from jobmaster.units import UnitError, parse_duration

        try:
            return float(parse_duration(str(value)))
        except UnitError as error:
            self.fail(f"{value!r}: {error}", param, ctx)


class TimeBound(click.ParamType):  # type: ignore[type-arg]  # no generic class before click 8.4
    """``30m``, ``2h``, ``7d``: so long ago; or an ISO 8601 time with zone."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from jobmaster.units import UnitError, parse_duration

        try:
            return float(parse_duration(str(value)))
        except UnitError as error:
            if "T" in str(value).upper() or "-" in str(value)[1:]:
                return moment(
                    str(value), f"--{param.name}" if param is not None and param.name else "the time", InputError
                )
            self.fail(f"{value!r}: {error}; or give a time such as 2030-01-31T12:00:00Z", param, ctx)


DURATION = Duration()
TIME_BOUND = TimeBound()


def moment(value: str, option: str, wrong: type[InputError] = InvalidDueTime) -> Any:
    """The time (aware) of an option; ``wrong`` for a text that is none, or has no zone."""
    from datetime import datetime

    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        raise wrong(f"{option} {value!r} is not a time", hint="such as 2030-01-31T12:00:00Z") from None
    if found.tzinfo is None:
        whole = found.isoformat()
        raise wrong(f"{option} {value!r} has no time zone", hint=f"such as {whole}Z or {whole}+01:00")
    return found


async def with_cluster(settings: ClusterSettings, work: Callable[[Cluster], Coroutine[Any, Any, Any]]) -> Any:
    """Run some work with the cluster of the command."""
    from jobmaster.wiring import open_cluster

    async with await open_cluster(settings) as cluster:
        return await work(cluster)


async def job_id_of(settings: ClusterSettings, job: str) -> bytes:
    """The id that begins with ``job``. A complete id need not be in the master (yet)."""
    from uuid import UUID

    low, high = id_range(job, "a job")
    if low == high:
        return low
    async with reader_of(settings) as reader:
        found = await reader.report("job_ids", UUID(bytes=low), UUID(bytes=high))
    if not found:
        raise NotFound(f"the master has no job {job}...", hint="a job without a row needs its complete id")
    if len(found) > 1:
        raise InputError(f"several jobs begin with {job}", hint="give more of the id")
    return bytes(found[0]["id"].bytes)


class ActedOn(NamedTuple):
    """One job of a command about several, as it is printed, and its error."""

    record: dict[str, Any]
    error: JobMasterError | None = None


async def act_on_each(
    settings: ClusterSettings, jobs: Sequence[str], act: Callable[[bytes], Awaitable[ActedOn]]
) -> list[ActedOn]:
    """Act on each job of a command. All ids are checked before the first action.

    A job without a row, or in a state that forbids the action, does not keep the others from it. After any other error
    no further job is tried.

    Returns: one entry for each job, in their order.

    Raises:
        InputError: an id is malformed or ambiguous, or the first action refused its input; nothing was done.
    """
    for job in jobs:
        id_range(job, "a job")
    known: list[bytes | NotFound] = []
    for job in jobs:
        try:
            known.append(await job_id_of(settings, job))
        except NotFound as error:
            known.append(error)
    done: list[ActedOn] = []
    stopped: JobMasterError | None = None
    for job, job_id in zip(jobs, known, strict=True):
        if isinstance(job_id, NotFound):
            done.append(ActedOn({"id": job}, job_id))
        elif stopped is not None:
            done.append(ActedOn({"id": text(job_id)}, Conflict("not tried, because of the error before")))
        else:
            try:
                done.append(await act(job_id))
            except JobMasterError as error:
                if isinstance(error, InputError) and all(each.error is not None for each in done):
                    raise
                done.append(ActedOn({"id": text(job_id)}, error))
                stopped = None if isinstance(error, NotFound | Conflict) else error
    return done


def emit_each(done: Sequence[ActedOn], columns: Sequence[Column], output: Output) -> None:
    """Print one row for each job of a command, then raise the worst error: that with the highest exit code."""
    records = [{**_empty(columns), **each.record, "error": _row_error(each.error)} for each in done]
    errors = [each.error for each in done if each.error is not None]
    if errors:
        columns = (*columns, Column("ERROR", "error.message", whole=True))
    if not output.for_people or len(done) > 1 or not errors:
        emit_rows(records, columns, output, empty="")
    if not errors:
        return
    worst = max(errors, key=lambda error: error.exit_code)
    if len(errors) == 1 or not isinstance(worst, NotFound | Conflict):
        raise worst
    named = "; ".join(error.message for error in errors[:ERRORS_NAMED_MAX])
    more = f"; and {len(errors) - ERRORS_NAMED_MAX} more" if len(errors) > ERRORS_NAMED_MAX else ""
    kind = Conflict if isinstance(worst, Conflict) else NotFound
    raise kind(f"{len(errors)} of {len(done)} jobs: {named}{more}", hint=worst.hint)


def _empty(columns: Sequence[Column]) -> dict[str, Any]:
    return {column.key: None for column in columns}


def _row_error(error: JobMasterError | None) -> dict[str, str | None] | None:
    if error is None:
        return None
    failure = failure_of(error)
    return {"code": failure.code, "message": failure.message, "hint": failure.hint}


def covering(found: Sequence[Pause], view: JobView) -> list[Pause]:
    """Those of the pauses that keep a job from starting."""
    if view.state.final or view.state in (JobState.PROCESSING, JobState.WAITING):
        return []
    return [each for each in found if each.covers(view.handler, view.lane, view.priority.label, view.tags)]
