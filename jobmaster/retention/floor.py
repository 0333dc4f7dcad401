"""How far the floor may rise: never past an id that an agent store may still hold alone.

Below the floor a first row is refused, because it can only be a late copy of a job that is finished and gone. A job that
waits unclaimed in a store has no row yet; if the floor passed it, it would be taken for such a copy and lost.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime

from jobmaster.model.errors import Conflict, InputError
from jobmaster.model.ids import created_ms, text
from jobmaster.ports import FloorStore, StateQueries
from jobmaster.units import format_duration


def age_checked(older_than_seconds: float, skew_seconds: float) -> float:
    """The age a range must have.

    Raises:
        InputError: it is so small that a producer whose clock is slow, within the limit, could still make such ids.
    """
    least = 2 * skew_seconds
    if older_than_seconds < least:
        raise InputError(
            f"ranges can be retired when they are {format_duration(least)} old, not {format_duration(older_than_seconds)}",
            hint=f"producers may be {format_duration(skew_seconds)} off (limits.clock_skew); give at least twice that",
        )
    return older_than_seconds


async def refuse_if_held_alone(
    hi: bytes,
    *,
    stores: Mapping[str, FloorStore],
    registered: Collection[str],
    lost_stores: Collection[str],
    queries: StateQueries,
    skew_seconds: float,
) -> None:
    """Raise ``Conflict`` when a store may hold an id below ``hi`` that the master does not have.

    Args:
        hi: first id beyond the range that is to leave.
        stores: every store of the configuration, connected.
        registered: every store that agents have registered in the master.
        lost_stores: stores that an operator has given up; what they held alone is lost.
        skew_seconds: how far the time in an id may be from the clock of the store that took it.
    """
    strangers = set(registered) - set(stores) - set(lost_stores)
    if strangers:
        raise Conflict(
            f"store {sorted(strangers)[0]!r} may hold jobs that the master does not have, and the configuration does not "
            "name it",
            hint="add it under stores, or give it up with --lost-store NAME",
        )
    for name, store in stores.items():
        for bucket_id in await store.known_buckets():
            found = await store.store_only_jobs(bucket_id)
            where = f"bucket {text(bucket_id)} of store {name!r}"
            if found.kept:
                raise Conflict(
                    f"{where} keeps {found.kept} outcomes that the master does not have yet",
                    hint="they are applied when the master answers again; then run the command again",
                )
            if found.pending is not None and created_ms(found.pending) - 2000 * skew_seconds < created_ms(hi):
                raise Conflict(
                    f"{where} has jobs waiting since {_moment(found.pending)} that the master does not have",
                    hint="let them run, or drain the agent that owns the bucket; then run the command again",
                )
            old = [job_id for job_id in found.claimed if job_id < hi]
            rowless = set(old) - set(await queries.states(old)) if old else set()
            if rowless:
                raise Conflict(
                    f"{where} has {len(rowless)} claimed jobs that the master does not have, such as {text(min(rowless))}",
                    hint="their owner or a rescuer will write them; then run the command again",
                )


def _moment(job_id: bytes) -> str:
    return datetime.fromtimestamp(created_ms(job_id) / 1000, UTC).isoformat(" ", "seconds")
