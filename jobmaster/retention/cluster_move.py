"""All unfinished jobs of a cluster move to the master of another one, while producers go on submitting to the old one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from jobmaster.master.history.cluster_move import ClusterMove, Left, MasterPlace, Preview
from jobmaster.model.cluster import ClusterMode
from jobmaster.model.errors import Conflict
from jobmaster.server_addresses import direct_dsn
from jobmaster.settings.model import ClusterSettings
from jobmaster.wiring import open_master

PAGE_JOBS = 500
LOOK_SECONDS = 0.5
"""Between two looks at a source whose agents still give their jobs back."""


class MoveResult(NamedTuple):
    """Result of a move."""

    moved: int
    """Jobs that were moved by this and earlier calls."""
    archived: bool


async def set_mode(settings: ClusterSettings, mode: ClusterMode, actor: str, reason: str) -> ClusterMode:
    """Change the mode of a cluster; the former one.

    Raises:
        Conflict: it may not be archived yet (unfinished jobs, open buckets), or may not be active while a move is in doubt.
    """
    master = await open_master(settings, application_name="jobmaster-cli", producer=True)
    try:
        (row,) = await master.statements.write("cluster/set_mode", str(mode), actor, reason)
    finally:
        await master.close()
    return ClusterMode(row["former"])


async def move_cluster(
    source: ClusterSettings,
    target: ClusterSettings,
    actor: str,
    progress: Callable[[str], None],
    *,
    archive: bool = False,
) -> MoveResult:
    """Move all unfinished jobs, with what belongs to them; safe to repeat after any interruption.

    Args:
        actor: name for the operator's log.
        archive: the source becomes ``archived`` when it is empty, so that late producers get an error.

    Raises:
        Conflict: workflows or batches have not ended; the target is the source, is not active, or has other migrations.
    """
    moving = await ClusterMove.connect(*(_place(each) for each in (source, target)))
    try:
        moved = await moving.begin()
        if moving.in_doubt:
            moved += await moving.move_page(PAGE_JOBS)
        # An archived source is empty, and would take jobs again. What a killed command has not sent yet goes along.
        archived = await moving.mode() is ClusterMode.ARCHIVED
        if not archived:
            _refuse_flows(await moving.left())
            await moving.set_mode(ClusterMode.MIGRATING, actor, f"jobmaster migrate to {target.cluster}")
            progress("the cluster is migrating: its agents complete their buckets")
        progress(f"{await moving.move_definitions()} schedules, limits, pauses and other rows are new in the target")
        progress(f"{await moving.move_keys()} idempotency keys and unique keys are new in the target")
        while not archived:
            moved += await _move_all(moving, progress, moved)
            if not archive:
                break
            try:
                await moving.set_mode(ClusterMode.ARCHIVED, actor, f"moved to {target.cluster}")
            except Conflict:  # a producer was faster
                left = await moving.left()
                if not (left.waiting or left.in_flight or left.buckets):
                    raise
                continue
            archived = True
        await _move_signals(moving, progress)  # of an archived source: the last ones, it takes no more
        return MoveResult(moved, archived)
    finally:
        await moving.close()


async def preview_move(source: ClusterSettings, target: ClusterSettings) -> Preview:
    """What ``move_cluster`` would take, and what would stay; nothing is changed.

    Raises:
        Conflict: the target is the source, is not active, or has other migrations; another process moves the source.
    """
    moving = await ClusterMove.connect(*(_place(each) for each in (source, target)))
    try:
        return await moving.preview()
    finally:
        await moving.close()


async def _move_all(moving: ClusterMove, progress: Callable[[str], None], before: int) -> int:
    """Page after page, until the source, in which nothing runs any more, has no such job at one look."""
    moved, waits = 0, ""
    while True:
        if page := await moving.move_page(PAGE_JOBS):
            moved += page
            progress(f"{before + moved} jobs moved")
            continue
        if moving.quiet:
            await _move_signals(moving, progress)
        left = await moving.left()
        if moving.quiet and not (left.waiting or left.in_flight or left.buckets):
            if left.workflows or left.batches:
                progress(f"{left.workflows} workflows and {left.batches} batches have begun here meanwhile, and stay")
            return moved
        if not moving.quiet and waits != (waits := _waits_for(left)):
            progress(waits)
        await asyncio.sleep(LOOK_SECONDS)


async def _move_signals(moving: ClusterMove, progress: Callable[[str], None]) -> None:
    if sent := await moving.move_signals():
        progress(f"{sent} kept signals sent to the target")


def _waits_for(left: Left) -> str:
    if left.buckets:
        return f"waiting for {left.buckets} open bucket(s); a living agent completes them"
    if left.overdue:
        return (
            f"waiting for the death certificate of {left.overdue} agent(s) whose lease has run out; a living agent writes it "
            "(start one if there is none)"
        )
    return "waiting until every agent has renewed its lease, and knows the mode"


def _refuse_flows(left: Left) -> None:
    if left.workflows or left.batches:
        raise Conflict(
            f"{left.workflows} workflows and {left.batches} batches have not ended, and they end where they began",
            hint="wait for their end, or cancel them (jobmaster workflow list, jobmaster batch list); --preview counts "
            "what moves and what stays",
        )


def _place(settings: ClusterSettings) -> MasterPlace:
    return MasterPlace(direct_dsn(settings), settings.schema_name(), settings.master)
