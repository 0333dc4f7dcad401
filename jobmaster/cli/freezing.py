"""What ``jobmaster bucket freeze`` and ``unfreeze`` do: the word in the master first, then in the stores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jobmaster.cli.operating import operator_name
from jobmaster.cli.running import pick, reader_of
from jobmaster.model.bucket import BucketState
from jobmaster.model.errors import InputError, JobMasterError
from jobmaster.model.ids import text
from jobmaster.model.job import Priority

if TYPE_CHECKING:
    from jobmaster.model.bucket import Bucket
    from jobmaster.settings.model import ClusterSettings

NO_REASON = "no reason given"


def one_choice(buckets: Sequence[str], lane: str | None, all_: bool) -> None:
    """Refuse anything but exactly one way to say which buckets.

    Raises:
        InputError: none, or several.
    """
    said = [bool(buckets), lane is not None, all_]
    if sum(said) != 1:
        wrong = "say which buckets" if not any(said) else "give buckets, or --lane, or --all, not several of them"
        raise InputError(wrong, hint="BUCKET ... | --lane LANE | --all (see: jobmaster bucket list)")


async def freeze(
    settings: ClusterSettings, buckets: Sequence[str], lane: str | None, reason: str
) -> tuple[list[dict[str, Any]], list[str]]:
    """Stop buckets; their records, and what could not be told to a store.

    Raises:
        NotFound, InputError: a bucket that was named is not there, or cannot be frozen.
    """
    ids = await _chosen(settings, buckets, (BucketState.ACTIVE, BucketState.FROZEN), "frozen")
    changed = await _move(settings, ids, lane, reason, frozen=True)
    return [_record(bucket) for bucket in changed], await _tell_stores(settings, changed)


async def unfreeze(
    settings: ClusterSettings, buckets: Sequence[str], lane: str | None, reason: str
) -> list[dict[str, Any]]:
    """Let buckets go on, under a new epoch; their records. Their owners learn it with their next renewal."""
    ids = await _chosen(settings, buckets, (BucketState.FROZEN, BucketState.ACTIVE), "unfrozen")
    return [_record(bucket) for bucket in await _move(settings, ids, lane, reason, frozen=False)]


async def _chosen(
    settings: ClusterSettings, buckets: Sequence[str], states: Sequence[BucketState], done: str
) -> list[bytes] | None:
    """Ids of the buckets that were named; ``None`` when none was."""
    if not buckets:
        return None
    async with reader_of(settings) as reader:
        rows = await reader.report("buckets", True)
    chosen = [pick(rows, bucket, "bucket") for bucket in buckets]
    for row in chosen:
        if row["state"] not in states:
            raise InputError(
                f"bucket {row['id']} is {row['state']} and cannot be {done}",
                hint="only an ACTIVE bucket can be frozen, and only a FROZEN one unfrozen; nothing was changed",
            )
    return [row["id"].bytes for row in chosen]


async def _move(
    settings: ClusterSettings, ids: list[bytes] | None, lane: str | None, reason: str, *, frozen: bool
) -> list[Bucket]:
    from jobmaster.wiring import open_master

    master = await open_master(settings, application_name="jobmaster-cli")
    try:
        move = master.freeze if frozen else master.unfreeze
        return await move(ids, lane, operator_name(), reason)
    finally:
        await master.close()


async def _tell_stores(settings: ClusterSettings, buckets: Sequence[Bucket]) -> list[str]:
    """Producers and claims are refused from here on; a store that cannot be told is told by the bucket's owner."""
    from jobmaster.agentstore.store import AgentStore
    from jobmaster.wiring import addresses

    urls = addresses(settings).urls
    failures = []
    for name in sorted({bucket.store for bucket in buckets}):
        if name not in urls:
            failures.append(f"store {name} is not in the configuration: its owner tells it with its next renewal")
            continue
        try:
            store = await AgentStore.connect(
                cluster=settings.cluster, name=name, url=urls[name], settings=settings.stores[name]
            )
            try:
                for bucket in buckets:
                    if bucket.store == name:
                        await store.freeze(bucket.id, bucket.epoch, bucket.owner)
            finally:
                await store.close()
        except JobMasterError as error:
            failures.append(f"{error}; the owners tell it with their next renewal")
    return failures


def _record(bucket: Bucket) -> dict[str, Any]:
    return {
        "id": text(bucket.id),
        "lane": bucket.lane,
        "priority": Priority(bucket.priority).label,
        "state": bucket.state.value,
        "epoch": bucket.epoch,
        "store": bucket.store,
        "owner": text(bucket.owner),
    }
