"""What the commands about jobs share: durations, times and priorities as options, ids, and the cluster of a command."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import click

from jobmaster.cli.id_prefix import id_range
from jobmaster.cli.running import reader_of
from jobmaster.model.errors import InputError, InvalidDueTime, NotFound
from jobmaster.model.job import Priority

if TYPE_CHECKING:
    from jobmaster.client.cluster import Cluster
    from jobmaster.settings.model import ClusterSettings

PRIORITIES = [level.label for level in reversed(Priority)]


class Duration(click.ParamType[float]):
    """``30s``, ``5m``, ``1h30m`` or plain seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        from jobmaster.units import UnitError, parse_duration

        try:
            return float(parse_duration(str(value)))
        except UnitError as error:
            self.fail(f"{value!r}: {error}", param, ctx)


class TimeBound(click.ParamType[Any]):
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
