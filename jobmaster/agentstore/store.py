"""The agent store as agents use it: everything a producer may do, and the fenced calls of an owner or rescuer.

One method is one function call. The caller gets the status of every answer; a refusal is an answer, not an
error. Three statuses end something: ``FENCED`` the ownership, ``GENERATION`` and ``ROLLBACK`` the trust in what this store
holds of the bucket.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import cast

from jobmaster.agentstore import library
from jobmaster.agentstore.calls import Answer, Argument, FunctionCaller, function, pack, pack_function, status_of
from jobmaster.agentstore.entries import read_entries
from jobmaster.agentstore.errors import OutOfMemory
from jobmaster.agentstore.fences import Fences
from jobmaster.agentstore.health import check_fit
from jobmaster.agentstore.producer import ProducerStore
from jobmaster.distribution import upgrade_command
from jobmaster.model.bucket import BucketBacklog, StoreOnlyJobs
from jobmaster.model.errors import CodeError, Refused, StoreRefused, Unavailable
from jobmaster.model.ids import Fence, text
from jobmaster.passwords import PasswordFunction
from jobmaster.ports import Claimed, KeptPage, Page, ReplyStatus, StoreNode
from jobmaster.rules.batching import BATCH_BYTES
from jobmaster.settings.model import StoreSettings

ADOPT_STORE = function("adopt_store")
OPEN_BUCKET = function("open_bucket")
BEAT = function("beat")
UNFREEZE = function("unfreeze")
CLAIM = function("claim")
SETTLE = function("settle")
ASSIGN = function("assign")
KEEP_OUTCOMES = function("keep_outcomes")
CLAIMED_LISTS = function("claimed_lists")
READ_CLAIMED = function("read_claimed")
CLOSE_INTAKE = function("close_intake")
CLOSE_IF_EMPTY = function("close_if_empty")
FENCE = function("fence")
READ_PAGE = function("read_page")
REMOVE_PAGE = function("remove_page")
DELETE_BUCKET = function("delete_bucket")
GRANT_TERM = function("grant_term")
READ_KEPT = function("read_kept")
REMOVE_KEPT = function("remove_kept")
WITHDRAW = function("withdraw")
BACKLOG = function("backlog")

SCAN_KEYS_MAX = 2_000_000
"""``known_buckets`` looks at no more keys than this. A store of our own holds about ten per bucket."""
SCAN_PAGE = 1000


class AgentStore(ProducerStore):
    """One store as an agent sees it (``jobmaster.ports.ClientStore`` and the ports of ``jobmaster.ports.store``)."""

    def __init__(
        self, *, cluster: str, name: str, url: str, settings: StoreSettings, password: PasswordFunction | None = None
    ) -> None:
        super().__init__(cluster=cluster, name=name, url=url, settings=settings, password=password)
        self._fences = Fences()

    # ------------------------------------------------------------ the store

    async def initialise(self, cluster_uid: bytes, generation: bytes) -> bytes:
        """Check the server, load and verify the functions, claim the store for the cluster.

        Args:
            cluster_uid: 16 bytes that no other cluster has, whatever its name.
            generation: 16 fresh bytes, written when the store holds none.

        Returns:
            The generation that lies in the store; another one than sent when it was there before.

        Raises:
            StoreRefused: too old, evicts keys, is a replica or a cluster node, belongs to another cluster, was written by
                a newer JobMaster, or holds buckets of an older protocol.
        """
        await self.verify()
        await self._refuse_older_buckets()
        await self.load_functions()
        self._calls.reload = self._beats.reload = self.load_functions
        answer = await self._calls.function(
            ADOPT_STORE, (self.keys.store,), (cluster_uid, generation, library.PROTOCOL), mutating=False
        )
        if answer[0] == b"OTHER":
            raise StoreRefused(
                f"{self._calls.where} holds jobs of another cluster that is also named {self.cluster!r}"
                f" (uid {text(answer[1])}, ours is {text(cluster_uid)})",
                hint="name one of the two clusters otherwise (`cluster: NAME` in its configuration), or give each a database"
                " number of its own: redis://host:6379/1",
            )
        if answer[0] == b"NEWER":
            raise StoreRefused(
                f"{self._calls.where} was written by a newer JobMaster (protocol {answer[1]}, ours is {library.PROTOCOL})",
                hint=f"upgrade this program: {upgrade_command()}",
            )
        self._fences.generation = cast(bytes, answer[1])
        return self._fences.generation

    async def _refuse_older_buckets(self) -> None:
        """Keys of an older protocol have other names: what lies there would be taken for empty."""
        command = pack(b"HGET", self.keys.store, b"protocol")
        written = await self._calls.call(command, self.keys.store, mutating=False)
        if written is None or int(written) >= library.PROTOCOL:
            return
        metas = [self.keys.bucket(bucket_id).meta for bucket_id in await self.known_buckets()]
        commands = [(meta, pack(b"HGET", meta, b"state")) for meta in metas]
        states = await self._calls.call_all(commands, mutating=False)
        if count := len([state for state in states if state not in (None, b"READY_TO_DELETE")]):
            raise StoreRefused(
                f"{self._calls.where} holds {count} open bucket(s) of protocol {int(written)}, ours is {library.PROTOCOL}",
                hint="empty it before `jobmaster db migrate`: start agents of the earlier version, stop them with SIGTERM",
            )

    async def verify(self) -> None:
        """Look again whether jobs may be kept here: settings of a server can be changed while it runs. Of a server cluster, a
        node that was added gets the functions.

        Raises:
            StoreRefused: no longer; as ``initialise``.
            Unavailable: it does not answer.
        """
        reports, _ = await self._look()
        for report in reports:
            check_fit(report)
        if self._connector.nodes is not None and self._calls.reload is not None:
            await self.load_functions()

    async def nodes(self) -> list[StoreNode]:
        """The primaries of a server cluster; none of any other store."""
        if self._connector.nodes is None:
            return []
        reports, _ = await self._look()
        codes = {node.where: await _installed(node) for node in await self._calls.nodes()}
        return [
            StoreNode(
                name=report.node,
                server=f"{report.flavour} {report.version}",
                replicas=report.replicas,
                append_only=report.append_only,
                append_fsync=report.append_fsync,
                eviction_policy=report.eviction_policy,
                functions=None if (code := codes.get(report.where)) is None else library.build_of(code).number,
            )
            for report in reports
        ]

    async def load_functions(self) -> None:
        """Load the function library into each server unless it holds ours or a higher build, then check what it holds.

        ``initialise`` does this, too; alone it is what a deployment does whose agents may not load functions."""
        for node in await self._calls.nodes():
            await _load_functions(node)

    async def known_buckets(self) -> list[bytes]:
        """Every bucket that has keys here, found by a SCAN.

        There is no index of buckets on purpose: it would lie in another slot than the bucket, could only be written
        before or after it, and anti-entropy needs what is there, not what should be there. Jobs are inside lists,
        so the number of keys is small. ``Refused`` when the database holds more than ``SCAN_KEYS_MAX`` keys.
        """
        return sorted(set(filter(None, map(self.keys.bucket_of, await self._scan(self.keys.every_bucket)))))

    async def known_lists(self, bucket_id: bytes) -> list[str]:
        """Names of the claimed lists of a bucket whose keys are here, found by a SCAN: also unnamed ones."""
        keys = await self._scan(self.keys.bucket(bucket_id).claimed_prefix + b"*")
        return sorted({name for key in keys if (name := self.keys.list_of(bucket_id, key)) is not None})

    async def _scan(self, pattern: bytes) -> list[bytes]:
        """Keys that match, of all nodes; one may come twice.

        ``Unavailable`` when a key has moved from one node to another meanwhile: it may have been seen on neither."""
        before = await self._calls.layout()
        found = [key for node in await self._calls.nodes() for key in await _scan_node(node, pattern)]
        if await self._calls.layout() != before:
            raise Unavailable(
                f"{self._calls.where}: hash slots have moved between its nodes while their keys were listed",
                hint="list them again",
            )
        return found

    async def store_only_jobs(self, bucket_id: bytes) -> StoreOnlyJobs:
        """Jobs of a bucket that may have no row in the master. Reads only, and needs no ownership.

        In the order in which jobs move, so that one that moves meanwhile is found further on; each reply is awaited before
        the next call, because redirects of a server cluster change the order of calls that are under way together. The head
        of ``pending`` represents all of it: entries arrive there in order, and none with an id further from this server's
        clock than the limit for skewed clocks.
        """
        keys = self.keys.bucket(bucket_id)
        head = await self._calls.call(pack(b"LRANGE", keys.pending, 0, 0), keys.pending, mutating=False)
        names = await self._calls.call(pack(b"SMEMBERS", keys.lists), keys.lists, mutating=False)
        pages = await self._calls.call_all(
            [(keys.meta, pack(b"LRANGE", keys.claimed_prefix + name, 0, -1)) for name in names], mutating=False
        )
        kept = await self._calls.call(pack(b"LLEN", keys.kept), keys.kept, mutating=False)
        claimed = tuple(entry.id for page in pages for entry in read_entries(page))
        return StoreOnlyJobs(read_entries(head)[0].id if head else None, claimed, kept)

    async def backlogs(self, bucket_ids: Sequence[bytes]) -> list[BucketBacklog | None]:
        """What waits in each bucket to be run, in one write; ``None`` where the store has no such bucket."""
        commands = []
        for bucket_id in bucket_ids:
            keys = self.keys.bucket(bucket_id)
            commands.append((keys.meta, pack_function(BACKLOG, (keys.meta, keys.pending, keys.assigned), ())))
        answers: list[Answer] = await self._calls.look(commands)
        return [
            BucketBacklog(answer[1], answer[2], answer[3] / 1e6, answer[4])
            if status_of(answer) is ReplyStatus.OK
            else None
            for answer in answers
        ]

    async def leave(self) -> bool:
        """Delete the mark of the cluster; False while a bucket of it has keys here. For clusters to be thrown away."""
        if await self.known_buckets():
            return False
        await self._calls.call(pack(b"DEL", self.keys.store), self.keys.store, mutating=False)
        return True

    async def beat(self, agent_id: bytes, ttl_seconds: float) -> None:
        """Heartbeat key of an agent, gone after ``ttl_seconds`` by the server's clock; on a connection of its own. A store at
        its ``maxmemory`` takes it, too."""
        milliseconds = max(1, round(ttl_seconds * 1000))
        await self._beats.function(BEAT, (self.keys.agent(agent_id),), (milliseconds,), mutating=False)

    async def wait_wake(self, bucket_ids: Sequence[bytes], timeout_seconds: float) -> bytes | None:
        """Block until a bucket has a wake token; its id, or ``None`` after the time-out. One caller at a time.

        A token is a hint, not a job: it may be lost with a cancelled or broken wait. So the owner claims from every
        bucket once after each reconnect, error, cancellation and ``None``; then nothing waits longer than one time-out.
        """
        return await self._wake_waiter.wait(bucket_ids, timeout_seconds)

    # ------------------------------------------------------------ the owner's calls

    async def open_bucket(self, fence: Fence) -> ReplyStatus:
        """Make an ACTIVE bucket; OK again for the same fence. GENERATION when one that was seen before is gone."""
        keys = self.keys.bucket(fence.bucket_id)
        answer = await self._calls.function(OPEN_BUCKET, (keys.meta,), self._fences.arguments(fence))
        return self._fences.note(fence.bucket_id, answer)

    async def unfreeze(self, fence: Fence, list_name: str) -> ReplyStatus:
        """The owner's bucket works again under the epoch of the fence; OK again when it does already. Under a higher one what
        was onboarded before lies in ``claimed:<list_name>`` then."""
        keys = self.keys.bucket(fence.bucket_id)
        answer = await self._calls.function(
            UNFREEZE,
            (keys.meta, keys.wake, keys.assigned, keys.lists, keys.claimed(list_name)),
            (*self._fences.arguments(fence), list_name.encode()),
        )
        return self._fences.note(fence.bucket_id, answer)

    async def claim(
        self, fence: Fence, list_name: str, limit: int, bytes_max: int = BATCH_BYTES, *, oldest: bool = False
    ) -> Claimed:
        """Up to ``limit`` jobs of together ``bytes_max`` bytes (always one), now in ``claimed:<list_name>``; the same name
        again: the same list.

        With ``limit`` 0 only the hints are read (due time, onboarding, cancellations). That of onboarding is given once; a
        claim whose reply was lost has lost it, and the scan of the master makes up for it.
        """
        keys = self.keys.bucket(fence.bucket_id)
        answer = await self._calls.function(
            CLAIM,
            (keys.meta, keys.pending, keys.assigned, keys.claimed(list_name), keys.lists, keys.cancelled),
            (*self._fences.arguments(fence), limit, list_name.encode(), bytes_max, *((1,) if oldest else ())),
        )
        status = self._fences.note(fence.bucket_id, answer)
        if status is not ReplyStatus.OK:
            return Claimed(status, [], [], 0, 0, False, 0)
        _, _, now_us, next_due_us, hint, remaining, cancelled, raw = answer[:8]
        entries = read_entries(raw)
        oldest_us = answer[8] if oldest else 0
        return Claimed(status, entries, raw, now_us, next_due_us, hint == 1, remaining, tuple(cancelled), oldest_us)

    async def withdraw(
        self, fence: Fence, noted: Sequence[bytes], copies: Sequence[tuple[int, bytes]]
    ) -> tuple[ReplyStatus, frozenset[bytes]]:
        """Take ``(due_us, job_id)`` of cancelled jobs out of ``assigned``, and requests that the owner has noted out of
        ``cancelled``; the ids of the copies that were there. Sent again, nothing more is removed."""
        keys = self.keys.bucket(fence.bucket_id)
        arguments: list[Argument] = [*self._fences.arguments(fence), b"".join(noted)]
        for copy in sorted(copies):
            arguments += copy
        answer = await self._calls.function(WITHDRAW, (keys.meta, keys.assigned, keys.cancelled), arguments)
        status = self._fences.note(fence.bucket_id, answer)
        return status, frozenset(answer[2]) if status is ReplyStatus.OK else frozenset()

    async def settle(self, fence: Fence, list_names: Sequence[str], finished: Sequence[bytes]) -> ReplyStatus:
        """Delete claimed lists whose every entry is settled; publish the finished ids (whatever the status is)."""
        keys = self.keys.bucket(fence.bucket_id)
        answer = await self._calls.function(
            SETTLE,
            (keys.meta, keys.lists, *map(keys.claimed, list_names)),
            (*self._fences.arguments(fence), self.keys.finished, b"".join(finished), *map(str.encode, list_names)),
        )
        return self._fences.note(fence.bucket_id, answer)

    async def assign(self, fence: Fence, items: Sequence[tuple[int, bytes]]) -> ReplyStatus:
        """``(due_us, entry)`` into ``assigned``; the same entry again changes nothing."""
        keys = self.keys.bucket(fence.bucket_id)
        arguments = list(self._fences.arguments(fence))
        for item in items:
            arguments += item
        answer = await self._calls.function(ASSIGN, (keys.meta, keys.assigned, keys.wake), arguments)
        return self._fences.note(fence.bucket_id, answer)

    async def keep_outcomes(self, fence: Fence, outcomes: Sequence[bytes], list_names: Sequence[str]) -> ReplyStatus:
        """Keep outcomes while the master is down and delete the lists they come from, in one step.

        Sent again after ``OutcomeUnknown``, outcomes may lie there twice; the second is recognised by its identity."""
        keys = self.keys.bucket(fence.bucket_id)
        head: tuple[Argument, ...] = (*self._fences.arguments(fence), len(outcomes))
        answer = await self._calls.function(
            KEEP_OUTCOMES,
            (keys.meta, keys.kept, keys.lists, *map(keys.claimed, list_names)),
            (*head, *outcomes, *map(str.encode, list_names)),
        )
        return self._fences.note(fence.bucket_id, answer)

    async def grant_term(self, fence: Fence, term_seconds: float) -> ReplyStatus:
        """OK: the bucket is still the caller's, and no rescuer begins for ``term_seconds``; 0 takes that back.

        ``StoreRefused`` where a replica may take the server's place: it may lack the term, and a rescuer would not wait.
        """
        if self._connector.fails_over:
            raise StoreRefused(f"{self._calls.where} gives no terms: a failover could forget them")
        keys = self.keys.bucket(fence.bucket_id)
        term_us = round(term_seconds * 1e6)
        answer = await self._calls.function(GRANT_TERM, (keys.meta,), (*self._fences.arguments(fence), term_us))
        return self._fences.note(fence.bucket_id, answer)

    async def read_kept(self, fence: Fence, limit: int, bytes_max: int = BATCH_BYTES) -> KeptPage:
        """The oldest outcomes that a working bucket keeps, at most ``bytes_max`` bytes of them or one."""
        keys = self.keys.bucket(fence.bucket_id)
        answer = await self._calls.function(
            READ_KEPT, (keys.meta, keys.kept), (*self._fences.arguments(fence), limit, bytes_max), mutating=False
        )
        status = self._fences.note(fence.bucket_id, answer)
        return KeptPage(status, answer[2], answer[3]) if status is ReplyStatus.OK else KeptPage(status, 0, [])

    async def remove_kept(self, fence: Fence, page: Sequence[bytes], back: Sequence[bytes]) -> ReplyStatus:
        """Take out exactly the outcomes of a page that ``read_kept`` returned, those of ``back`` go to the end again; sent
        again, nothing more is changed."""
        keys = self.keys.bucket(fence.bucket_id)
        head: tuple[Argument, ...] = (*self._fences.arguments(fence), len(page), _digest(page))
        answer = await self._calls.function(REMOVE_KEPT, (keys.meta, keys.kept), (*head, *back))
        return self._fences.note(fence.bucket_id, answer)

    async def claimed_lists(self, fence: Fence) -> tuple[ReplyStatus, list[str]]:
        """Names of the claimed lists that lie in the store."""
        keys = self.keys.bucket(fence.bucket_id)
        answer = await self._calls.function(
            CLAIMED_LISTS, (keys.meta, keys.lists), self._fences.arguments(fence), mutating=False
        )
        status = self._fences.note(fence.bucket_id, answer)
        return status, sorted(name.decode() for name in answer[2]) if status is ReplyStatus.OK else []

    async def read_claimed(self, fence: Fence, list_name: str) -> Claimed:
        """One claimed list as it lies there; empty when there is none."""
        keys = self.keys.bucket(fence.bucket_id)
        answer = await self._calls.function(
            READ_CLAIMED, (keys.meta, keys.claimed(list_name)), self._fences.arguments(fence), mutating=False
        )
        status = self._fences.note(fence.bucket_id, answer)
        if status is not ReplyStatus.OK:
            return Claimed(status, [], [], 0, 0, False, 0)
        return Claimed(status, read_entries(answer[3]), answer[3], answer[2], 0, False, 0)

    async def close_intake(self, fence: Fence) -> ReplyStatus:
        """ACTIVE -> COMPLETING: producers and onboarding get CLOSED from now on."""
        keys = self.keys.bucket(fence.bucket_id)
        answer = await self._calls.function(CLOSE_INTAKE, (keys.meta,), self._fences.arguments(fence))
        return self._fences.note(fence.bucket_id, answer)

    async def close_if_empty(self, fence: Fence) -> ReplyStatus:
        """COMPLETING or DRAINING -> READY_TO_DELETE when nothing lies there; NOT_EMPTY otherwise."""
        keys = self.keys.bucket(fence.bucket_id)
        answer = await self._calls.function(
            CLOSE_IF_EMPTY,
            (keys.meta, keys.pending, keys.assigned, keys.lists, keys.kept),
            self._fences.arguments(fence),
        )
        return self._fences.note(fence.bucket_id, answer)

    # ------------------------------------------------------------ the rescuer's calls

    async def fence(self, fence: Fence) -> tuple[ReplyStatus, int]:
        """Take the bucket; the epoch in the store afterwards (the higher one, when FENCED).

        With LEASED the bucket is taken too, and the number is the microseconds to wait before anything of it is moved."""
        keys = self.keys.bucket(fence.bucket_id)
        arguments = (self._fences.current(), fence.epoch, fence.owner)
        answer = await self._calls.function(FENCE, (keys.meta,), arguments)
        return self._fences.restart(fence.bucket_id, answer), answer[2]

    async def read_page(self, fence: Fence, limit: int, bytes_max: int = BATCH_BYTES) -> Page:
        """Next page in the order kept, claimed, pending, assigned, of at most ``bytes_max`` bytes or of one item; kind is
        empty when nothing is left.

        ``entries`` is empty for ``kept``, which holds outcomes (in ``raw``)."""
        keys = self.keys.bucket(fence.bucket_id)
        answer = await self._calls.function(
            READ_PAGE,
            (keys.meta, keys.kept, keys.lists, keys.pending, keys.assigned),
            (*self._fences.arguments(fence), limit, keys.claimed_prefix, bytes_max),
            mutating=False,
        )
        status = self._fences.note(fence.bucket_id, answer)
        if status is not ReplyStatus.OK:
            return Page(status, "", "", [], [])
        kind, list_name, raw = answer[2].decode(), answer[3].decode(), answer[4]
        return Page(status, kind, list_name, [] if kind == "kept" else read_entries(raw), raw)

    async def remove_page(self, fence: Fence, page: Page) -> ReplyStatus:
        """Remove exactly what ``read_page`` returned; sent again, nothing more is removed."""
        keys = self.keys.bucket(fence.bucket_id)
        match page.kind:
            case "":
                return ReplyStatus.OK
            case "kept":
                where = keys.kept
            case "claimed":
                where = keys.claimed(page.list_name)
            case "pending":
                where = keys.pending
            case "assigned":
                where = keys.assigned
            case _:
                raise CodeError(f"a page of kind {page.kind!r} does not exist")
        what: tuple[Argument, ...] = (page.kind.encode(), page.list_name.encode(), len(page.raw), _digest(page.raw))
        members = page.raw if page.kind == "assigned" else ()
        answer = await self._calls.function(
            REMOVE_PAGE, (keys.meta, keys.lists, where), (*self._fences.arguments(fence), *what, *members)
        )
        return self._fences.note(fence.bucket_id, answer)

    async def delete_bucket(self, bucket_id: bytes, lists: Sequence[str] = ()) -> ReplyStatus:
        """Remove the keys of a retired bucket; NOT_EMPTY when something lies there or it still takes jobs.

        Args:
            lists: claimed lists whose keys were found (``known_lists``); one that the bucket does not name is named again.
        """
        keys = self.keys.bucket(bucket_id)
        known = (keys.meta, keys.pending, keys.assigned, keys.lists, keys.kept, keys.cancelled, keys.wake)
        answer = await self._calls.function(
            DELETE_BUCKET, (*known, *map(keys.claimed, lists)), [name.encode() for name in lists]
        )
        status = status_of(answer)
        if status is ReplyStatus.OK:
            self._fences.forget(bucket_id)
        return status


async def _load_functions(node: FunctionCaller) -> None:
    if not library.must_load(await _installed(node)):
        return
    try:
        await node.call(pack(b"FUNCTION", b"LOAD", b"REPLACE", library.text()), mutating=False)
    except OutOfMemory as error:
        raise OutOfMemory(
            f"{node.where} is out of memory, so the functions of this build cannot be loaded into it",
            hint="raise its maxmemory for the upgrade; or let agents of the build that it has empty it first",
        ) from error
    if library.must_load(await _installed(node)):
        raise StoreRefused(
            f"{node.where} did not keep the function library {library.LIBRARY}",
            hint="does another program load a library of that name?",
        )


async def _installed(node: FunctionCaller) -> bytes | None:
    """Text of the library in one server, ``None`` when it has none."""
    command = pack(b"FUNCTION", b"LIST", b"LIBRARYNAME", library.LIBRARY.encode(), b"WITHCODE")
    for entry in await node.call(command, mutating=False):
        fields = dict(zip(entry[::2], entry[1::2], strict=True))
        return cast(bytes, fields[b"library_code"])
    return None


async def _scan_node(node: FunctionCaller, pattern: bytes) -> list[bytes]:
    found: list[bytes] = []
    cursor, looked = b"0", 0
    while looked <= SCAN_KEYS_MAX:
        command = pack(b"SCAN", cursor, b"MATCH", pattern, b"COUNT", SCAN_PAGE)
        cursor, page = await node.call(command, mutating=False)
        found += page
        if cursor == b"0":
            return found
        looked += SCAN_PAGE
    raise Refused(
        f"{node.where} holds more than {SCAN_KEYS_MAX} keys, so its buckets cannot be listed",
        hint="give JobMaster a database number of its own: redis://host:6379/1",
    )


def _digest(page: Sequence[bytes]) -> bytes:
    return hashlib.sha1(b"".join(page), usedforsecurity=False).hexdigest().encode()
