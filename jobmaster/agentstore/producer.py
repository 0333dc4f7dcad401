"""The producer's calls to a store: submit, put, hint, cancel, find. A producer owns no bucket: only the bucket's state guards
its calls, so a call can be refused at any moment, and the producer uses another bucket.

Producers never load functions: they may lack the right to, and they may be older than the agents.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Self, cast

from jobmaster.agentstore.calls import Answer, Argument, FunctionCaller, function, pack, pack_function, status_of
from jobmaster.agentstore.connections import Connector
from jobmaster.agentstore.entries import read_entry
from jobmaster.agentstore.errors import NotSent, OutOfMemory, translate
from jobmaster.agentstore.health import Report, health_of, parse_config, parse_info, refuse_cluster
from jobmaster.agentstore.keys import BucketKeys, Keys
from jobmaster.agentstore.node_calls import NodeCalls, NodeConnection
from jobmaster.agentstore.node_wake import NodeWakeWaiter
from jobmaster.agentstore.pipelined_connection import PipelinedConnection
from jobmaster.agentstore.wake_wait import FinishedSubscriptions, WakeWaiter
from jobmaster.codec import ID_AT, encode_identity
from jobmaster.model.bucket import BucketDepth
from jobmaster.model.errors import OutcomeUnknown, StoreRefused
from jobmaster.model.ids import Identity
from jobmaster.model.job import Entry
from jobmaster.passwords import PasswordFunction, rotating
from jobmaster.ports import Recall, ReplyStatus, StoreHealth, Submitted
from jobmaster.settings.model import StoreSettings

SUBMIT = function("submit")
PUT = function("put")
HINT = function("hint")
REQUEST_CANCEL = function("request_cancel")
FREEZE = function("freeze")
FIND = function("find")
DEPTH = function("depth")
RECALL = function("recall")


def found_in(answer: Answer) -> dict[bytes, Entry]:
    """Entries that a ``find`` answered with, by id."""
    if status_of(answer) is not ReplyStatus.OK:
        return {}
    # A library of an earlier build answers nil for one job that it has not found.
    return {entry.id: entry for entry in map(read_entry, filter(None, answer[1:]))}


class ProducerStore:
    """One store as a producer sees it (``jobmaster.ports.ClientStore``). Belongs to the event loop it was made in."""

    def __init__(
        self, *, cluster: str, name: str, url: str, settings: StoreSettings, password: PasswordFunction | None = None
    ) -> None:
        seconds = settings.call_timeout_seconds
        self.cluster = cluster
        self.name = name
        self.keys = Keys(cluster)
        self._connector = Connector(
            cluster=cluster,
            name=name,
            url=url,
            connect_timeout_seconds=settings.connect_timeout_seconds,
            password=rotating(password, settings.password_command, settings.password_lifetime_seconds),
        )
        self._connection, self._calls = self._caller("calls", seconds)
        # A heartbeat must not stand behind a page of megabytes: it has a connection of its own, opened at the first beat.
        self._beat_connection, self._beats = self._caller("beats", seconds)
        nodes = self._connector.nodes
        self._wake_waiter = (
            WakeWaiter(self._connector, self.keys, timeout_seconds=seconds)
            if nodes is None
            else NodeWakeWaiter(self._connector, nodes, self.keys, timeout_seconds=seconds)
        )
        self._finished_subscriptions = FinishedSubscriptions(self._connector, self.keys, timeout_seconds=seconds)

    def _caller(self, purpose: str, seconds: float) -> tuple[PipelinedConnection | NodeConnection, FunctionCaller]:
        """A connection and the caller that uses it."""
        nodes = self._connector.nodes
        if nodes is None:
            one = PipelinedConnection(self._connector, purpose=purpose, timeout_seconds=seconds)
            return one, FunctionCaller(one, self._connector.where)
        each = NodeConnection(self._connector, nodes, purpose=purpose, timeout_seconds=seconds)
        return each, NodeCalls(each, nodes, self._connector.where)

    @classmethod
    async def connect(cls, *, cluster: str, name: str, url: str, settings: StoreSettings) -> Self:
        """Connect to a store.

        Args:
            cluster: id of the cluster, part of every key.
            name: the store's name in the configuration, for error texts.
            url: ``redis://``, ``rediss://``, ``unix://``, ``redis+sentinel://`` or ``redis+cluster://``.
            settings: time-outs.

        Raises:
            Unavailable: it cannot be reached.
            StoreRefused: the URL cannot be used, or the store refuses the user.
        """
        store = cls(cluster=cluster, name=name, url=url, settings=settings)
        await store.open()
        return store

    async def open(self) -> None:
        """Connect now instead of with the first call; raises as ``connect``."""
        try:
            await self._connection.open()
        except NotSent as error:
            raise translate(error, where=self._connector.where, mutating=False) from None

    async def close(self) -> None:
        """Give every connection back. Calls in flight fail."""
        await self._wake_waiter.close()
        await self._finished_subscriptions.close()
        await self._beat_connection.close()
        await self._connection.close()
        if self._connector.nodes is not None:
            await self._connector.nodes.close()

    async def submit(
        self,
        bucket_id: bytes,
        items: Sequence[bytes],
        *,
        high_water_jobs: int,
        high_water_bytes: int,
        skew_ms_max: int,
    ) -> Submitted:
        """Append encoded entries to ``pending``; all or none. OK, NO_BUCKET, CLOSED, FULL or SKEW.

        A store at its ``maxmemory`` answers FULL too (depth -1: unknown): the producer's remedy is the same.

        Raises:
            OutcomeUnknown: they may lie there; send the same entries again.
            Unavailable, StoreRefused: they do not.
        """
        keys = self.keys.bucket(bucket_id)
        limits = (high_water_jobs, high_water_bytes, skew_ms_max)
        try:
            of_bucket = (keys.meta, keys.pending, keys.wake, keys.assigned)
            answer = await self._calls.function(SUBMIT, of_bucket, (*limits, *items))
        except OutOfMemory:
            return Submitted(ReplyStatus.FULL, -1)
        except OutcomeUnknown as error:
            raise OutcomeUnknown(error.message, id_bytes=[item[ID_AT] for item in items]) from None
        status = status_of(answer)
        if status is ReplyStatus.SKEW:
            return Submitted(status, 0, answer[1])
        return Submitted(status, answer[1] if len(answer) > 1 else 0)

    async def put(
        self,
        bucket_id: bytes,
        epoch: int,
        items: Sequence[tuple[int, bytes]],
        *,
        high_water_jobs: int,
        high_water_bytes: int,
    ) -> Submitted:
        """``(due_us, entry)`` of a master submit into ``assigned``; all or none. OK, NO_BUCKET, FENCED (another epoch),
        CLOSED or FULL, also (depth -1: unknown) when the store is at its ``maxmemory``."""
        keys = self.keys.bucket(bucket_id)
        arguments: list[Argument] = [epoch, high_water_jobs, high_water_bytes]
        for item in items:
            arguments += item
        try:
            answer = await self._calls.function(PUT, (keys.meta, keys.assigned, keys.wake, keys.pending), arguments)
        except OutOfMemory:
            return Submitted(ReplyStatus.FULL, -1)
        return Submitted(status_of(answer), answer[1] if len(answer) > 1 else 0)

    async def hint(self, bucket_id: bytes) -> None:
        """Notify the owner that HELD jobs of its lane and priority are due. A bucket that is gone needs no hint."""
        keys = self.keys.bucket(bucket_id)
        status_of(await self._calls.function(HINT, (keys.meta, keys.wake), mutating=False))

    async def request_cancel(self, bucket_id: bytes, job_id: bytes) -> ReplyStatus:
        """Request that the owner cancels a job; a wake token makes it read the request at once. OK, NO_BUCKET or CLOSED."""
        keys = self.keys.bucket(bucket_id)
        return status_of(await self._calls.function(REQUEST_CANCEL, (keys.meta, keys.cancelled, keys.wake), (job_id,)))

    async def recall(self, job_id: bytes, identity: Identity, due_us: int, scan_max: int) -> Recall:
        """Take the copy of this identity out of its bucket, unless it has been claimed. Of ``pending`` only the first
        ``scan_max`` are looked through.

        Raises:
            OutcomeUnknown: it may be out; the same call again answers so.
        """
        keys = self.keys.bucket(identity.bucket_id)
        of_bucket = (keys.meta, keys.assigned, keys.lists, keys.pending, *self._unnamed(keys))
        which = encode_identity(job_id, identity.token)
        arguments = (identity.bucket_epoch, which, due_us, scan_max, keys.claimed_prefix)
        answer = await self._calls.function(RECALL, of_bucket, arguments)
        return Recall(answer[1].decode()) if status_of(answer) is ReplyStatus.OK else Recall.ABSENT

    async def freeze(self, bucket_id: bytes, epoch: int, owner: bytes) -> ReplyStatus:
        """Write an operator's freeze where producers and the owner read it at once. OK, NO_BUCKET, FENCED or CLOSED."""
        keys = self.keys.bucket(bucket_id)
        return status_of(await self._calls.function(FREEZE, (keys.meta,), (epoch, owner)))

    async def find(
        self, bucket_ids: Sequence[bytes], job_ids: Sequence[bytes], scan_max: int
    ) -> list[dict[bytes, Entry]]:
        """Entries of these jobs (at most ``FIND_IDS_MAX``) among the first ``scan_max`` of each bucket (``assigned``,
        claimed, ``pending``), by id. All buckets are read in one write, and the server runs no other command meanwhile (of a
        server cluster: on each node)."""
        calls = [self._find_call(bucket_id, job_ids, scan_max) for bucket_id in bucket_ids]
        commands = [(keys[0], pack_function(FIND, keys, arguments)) for keys, arguments in calls]
        return [found_in(answer) for answer in await self._calls.look(commands)]

    async def is_claimed(self, bucket_id: bytes, job_id: bytes, scan_max: int) -> bool:
        """True when the copy of this job that ``find`` would answer lies in a claimed list: an agent has it in memory."""
        keys, arguments = self._find_call(bucket_id, [job_id], scan_max)
        answer = await self._calls.function(FIND, keys, (*arguments, b"places"), mutating=False)
        return status_of(answer) is ReplyStatus.OK and answer[2] > 0

    def _find_call(
        self, bucket_id: bytes, job_ids: Sequence[bytes], scan_max: int
    ) -> tuple[Sequence[bytes], Sequence[Argument]]:
        """Keys and arguments."""
        keys = self.keys.bucket(bucket_id)
        of_bucket = (keys.meta, keys.assigned, keys.lists, keys.pending, *self._unnamed(keys))
        return of_bucket, (b"".join(job_ids), scan_max, keys.claimed_prefix)

    def _unnamed(self, keys: BucketKeys) -> Sequence[bytes]:
        """What a server cluster needs to refuse a function that uses lists that no key names (``node_calls``)."""
        return () if self._connector.nodes is None else (keys.claimed_prefix,)

    async def depths(self, bucket_ids: Sequence[bytes]) -> list[BucketDepth | None]:
        """What lies in each bucket, in one write; ``None`` where the store has no such bucket."""
        commands = []
        for bucket_id in bucket_ids:
            keys = self.keys.bucket(bucket_id)
            of_bucket = (keys.meta, keys.pending, keys.assigned, keys.lists, keys.kept)
            commands.append((keys.meta, pack_function(DEPTH, of_bucket, ())))
        answers: list[Answer] = await self._calls.look(commands)
        return [BucketDepth(*answer[1:]) if status_of(answer) is ReplyStatus.OK else None for answer in answers]

    async def ping(self) -> None:
        """Returns when the server has answered a PING.

        Raises:
            Unavailable: it does not answer.
            StoreRefused: it refuses this user.
        """
        await self._calls.call(pack(b"PING"), self.keys.store, mutating=False)

    async def health(self) -> StoreHealth:
        """Version, eviction, log and generation, as the store reports them now."""
        reports, store = await self._look()
        return health_of(reports, store, fails_over=self._connector.fails_over)

    def finished(self) -> AsyncIterator[bytes]:
        """Ids that just got a row or an outcome in the master; the first item is empty and means that the subscription
        is established. ``Unavailable`` when it is lost: subscribe again, and read the master once. Close it with
        ``aclose``."""
        return self._finished_subscriptions.listen()

    async def _look(self) -> tuple[list[Report], tuple[bytes | None, bytes | None]]:
        """What each server reports, and the generation and the uid of the cluster that lie there."""
        reports = []
        for node in await self._calls.nodes():
            info = parse_info(cast(bytes, await node.call(pack(b"INFO"), mutating=False)))
            if self._connector.nodes is None:
                refuse_cluster(info, node.where)
            reports.append(Report(node.where, node.node, info, parse_config(await _config(node))))
        command = pack(b"HMGET", self.keys.store, b"generation", b"cluster_uid")
        stored = await self._calls.call(command, self.keys.store, mutating=False)
        return reports, (stored[0], stored[1])


async def _config(node: FunctionCaller) -> list[bytes] | None:
    """Managed stores forbid CONFIG or rename it; that is no error, it is not known then."""
    command = pack(b"CONFIG", b"GET", b"maxmemory-policy", b"appendfsync")
    try:
        return cast(list[bytes], await node.call(command, mutating=False))
    except StoreRefused:
        return None
