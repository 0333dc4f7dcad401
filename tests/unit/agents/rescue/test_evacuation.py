"""One bucket in evacuation, step by step, against scripted ports: what is done after each answer.

The same against real servers, with rescuers that die, is in ``test_rescue``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from jobmaster.clock import new_id
from jobmaster.codec import ID_AT
from jobmaster.model.bucket import Bucket, BucketState
from jobmaster.model.errors import CodeError, Refused, Unavailable, ValueRefused
from jobmaster.model.ids import AgentId, BucketId, Fence
from jobmaster.model.job import Entry, FinalRow, HoldRow
from jobmaster.ports import Page, ReplyStatus, Swept, UnstorableEntry, Written
from jobmaster.rules.batching import BATCH_BYTES
from jobmaster_agents.outcomes.kept_codec import keep_final, keep_hold
from jobmaster_agents.rescue.evacuation import Evacuation, EvacuationEnd
from tests.support.master_parts import MasterParts

EMPTY = Page(ReplyStatus.OK, "", "", [], [])


def an_entry(token: int = 1) -> Entry:
    return Entry(new_id(), token, "work", b"{}")


def a_page(kind: str, count: int = 3) -> Page:
    entries = [an_entry() for _ in range(count)]
    return Page(ReplyStatus.OK, kind, "l-1" if kind == "claimed" else "", entries, [entry.id for entry in entries])


class EvacuationPorts(MasterParts):
    """A store with pages and a master with answers; every call is written down."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.pages: list[Page] = []
        self.fence_answer = (ReplyStatus.OK, 5)
        self.closes = [ReplyStatus.OK]
        self.sweeps = [0]
        self.failed = 0
        self.closed = [True]
        self.answer: Callable[[Sequence[Entry]], Written] = lambda entries: Written(
            True, frozenset(e.id for e in entries)
        )
        self.finals: list[FinalRow] = []
        self.holds: list[tuple[Fence, HoldRow]] = []
        self.aside: list[UnstorableEntry] = []
        self.aside_fails: Exception | None = None
        self.unfit_rows: set[bytes] = set()
        self.superseded: set[bytes] = set()
        """Outcomes that the rows of their jobs refuse."""
        self.remove_word = ReplyStatus.OK
        self.claimed_pages: list[bool] = []
        self.limits: list[tuple[int, int]] = []

    async def move_bucket(self, bucket_id: bytes, epoch: int, owner: bytes, to: BucketState, reason: str) -> bool:
        raise AssertionError("an evacuation moves no bucket by itself")

    async def rescue_page(
        self, fence: Fence, entries: Sequence[Entry], lane: str, priority: int, *, claimed: bool, max_rescues: int
    ) -> Written:
        self.calls.append(f"rescue {len(entries)}")
        self.claimed_pages.append(claimed)
        assert (lane, priority, max_rescues) == ("payroll", 4, 3)
        return self.answer(entries)

    async def sweep(self, fence: Fence, limit: int, *, max_rescues: int) -> Swept:
        self.calls.append("sweep")
        moved = self.sweeps.pop(0) if self.sweeps else 0
        return Swept(moved, moved // 2, min(moved, self.failed))

    async def close_drained(self, fence: Fence, moved: int, rescued: int) -> bool:
        self.calls.append(f"close {moved} {rescued}")
        return self.closed.pop(0) if self.closed else True

    async def record_final(self, rows: Sequence[FinalRow]) -> Written:
        self.calls.append(f"final {len(rows)}")
        if self.unfit_rows.intersection(row.id for row in rows):
            raise ValueRefused("this row cannot be stored")
        self.finals.extend(rows)
        ids = frozenset(row.id for row in rows)
        return Written(True, ids - self.superseded, refused=ids & self.superseded)

    async def hold(self, fence: Fence, rows: Sequence[HoldRow]) -> Written:
        self.calls.append(f"hold {len(rows)}")
        self.holds.extend((fence, row) for row in rows)
        return Written(True, frozenset(row.id for row in rows))

    async def quarantine(self, bucket_id: bytes, entries: Sequence[UnstorableEntry]) -> None:
        self.calls.append(f"aside {len(entries)}")
        if self.aside_fails is not None:
            raise self.aside_fails
        self.aside += entries

    async def fence(self, fence: Fence) -> tuple[ReplyStatus, int]:
        self.calls.append("fence")
        return self.fence_answer

    async def read_page(self, fence: Fence, limit: int, bytes_max: int = BATCH_BYTES) -> Page:
        self.calls.append("read")
        self.limits.append((limit, bytes_max))
        return self.pages[0] if self.pages else EMPTY

    async def remove_page(self, fence: Fence, page: Page) -> ReplyStatus:
        self.calls.append("remove")
        if self.remove_word is ReplyStatus.OK:
            assert self.pages.pop(0) is page
        return self.remove_word

    async def close_if_empty(self, fence: Fence) -> ReplyStatus:
        self.calls.append("empty?")
        return self.closes.pop(0)


def an_evacuation(
    ports: EvacuationPorts,
    sound: Callable[[], bool] = lambda: True,
    on_ended: Callable[[Sequence[FinalRow]], None] = lambda _: None,
) -> Evacuation:
    bucket = Bucket(
        id=new_id(), store="one", lane="payroll", priority=4, state=BucketState.DRAINING, epoch=5, owner=new_id()
    )
    return Evacuation(bucket, ports, ports, sound, page_jobs=100, max_rescues=3, on_ended=on_ended)


async def test_what_a_page_or_a_sweep_gives_up_is_counted() -> None:
    ports = EvacuationPorts()
    page = a_page("claimed", 3)
    ports.pages = [page]
    given_up = page.entries[0].id
    ports.answer = lambda entries: Written(True, frozenset(e.id for e in entries), failed=frozenset({given_up}))
    ports.sweeps, ports.failed = [2, 0], 2
    evacuation = an_evacuation(ports)
    assert await evacuation.run() is EvacuationEnd.DRAINED
    assert (evacuation.moved, evacuation.failed) == (5, 3)


async def test_pages_go_to_the_master_before_they_leave_the_store() -> None:
    ports = EvacuationPorts()
    ports.pages = [a_page("claimed", 2), a_page("pending", 3), a_page("assigned", 1)]
    evacuation = an_evacuation(ports)
    assert await evacuation.run() is EvacuationEnd.DRAINED
    assert ports.calls == [
        "fence", "read", "rescue 2", "remove", "read", "rescue 3", "remove", "read", "rescue 1", "remove", "read",
        "empty?", "sweep", "close 6 2",
    ]  # fmt: skip
    assert ports.claimed_pages == [True, False, False]
    assert (evacuation.moved, evacuation.rescued) == (6, 2)


async def test_an_entry_refused_by_its_row_is_settled_and_leaves_the_store() -> None:
    ports = EvacuationPorts()
    ports.pages = [a_page("claimed", 3)]
    ports.answer = lambda entries: Written(True, frozenset(), refused=frozenset(entry.id for entry in entries))
    evacuation = an_evacuation(ports)
    assert await evacuation.run() is EvacuationEnd.DRAINED
    assert "remove" in ports.calls
    assert (evacuation.moved, evacuation.rescued, evacuation.refused) == (0, 0, 3)


async def test_a_page_refused_by_the_buckets_lock_touches_no_key() -> None:
    ports = EvacuationPorts()
    ports.pages = [a_page("claimed", 3)]
    ports.answer = lambda entries: Written(False, frozenset())
    assert await an_evacuation(ports).run() is EvacuationEnd.SUPERSEDED
    assert ports.calls == ["fence", "read", "rescue 3"]


async def test_a_page_that_times_out_goes_in_halves_and_the_next_ones_are_as_small() -> None:
    ports = EvacuationPorts()
    ports.pages = [a_page("claimed", 8), a_page("pending", 2)]
    too_many = 3

    def answer(entries: Sequence[Entry]) -> Written:
        if len(entries) > too_many:
            raise Unavailable("canceling statement due to statement timeout", timed_out=True)
        return Written(True, frozenset(e.id for e in entries))

    ports.answer = answer
    evacuation = an_evacuation(ports)
    assert await evacuation.run() is EvacuationEnd.DRAINED
    rescues = [int(call.removeprefix("rescue ")) for call in ports.calls if call.startswith("rescue ")]
    assert rescues[:4] == [8, 4, 2, 2]
    assert max(rescues[4:]) <= 4, "nothing that is as large as what timed out before"
    assert evacuation.moved == 10
    assert ports.limits[0] == (100, BATCH_BYTES)
    assert ports.limits[1][0] < 8
    assert ports.limits[1][1] < BATCH_BYTES


async def test_one_entry_that_times_out_is_no_reason_to_give_it_up() -> None:
    ports = EvacuationPorts()
    ports.pages = [a_page("claimed", 1)]
    ports.answer = lambda entries: (_ for _ in ()).throw(Unavailable("statement timeout", timed_out=True))
    with pytest.raises(Unavailable):
        await an_evacuation(ports).run()
    assert "remove" not in ports.calls
    assert not ports.aside


async def test_an_answer_that_forgets_an_entry_stops_everything() -> None:
    ports = EvacuationPorts()
    ports.pages = [a_page("pending", 3)]
    ports.answer = lambda entries: Written(True, frozenset(entry.id for entry in entries[1:]))
    with pytest.raises(CodeError):
        await an_evacuation(ports).run()
    assert "remove" not in ports.calls


@pytest.mark.parametrize("part", ["cancelled", "refused", "quarantined"])
async def test_every_part_of_an_answer_counts_as_settled(part: str) -> None:
    ports = EvacuationPorts()
    ports.pages = [a_page("pending", 2)]
    ports.answer = lambda entries: Written(
        True,
        frozenset([entries[0].id]),
        cancelled=frozenset([entries[1].id] if part == "cancelled" else []),
        refused=frozenset([entries[1].id] if part == "refused" else []),
        quarantined=frozenset([entries[1].id] if part == "quarantined" else []),
    )
    assert await an_evacuation(ports).run() is EvacuationEnd.DRAINED


async def test_one_entry_the_master_refuses_does_not_hold_back_its_neighbours() -> None:
    ports = EvacuationPorts()
    page = a_page("pending", 8)
    bad = page.entries[5].id
    moved: set[bytes] = set()
    ports.pages = [page]

    def answer(entries: Sequence[Entry]) -> Written:
        if any(entry.id == bad for entry in entries):
            raise Refused("this row cannot be stored")
        moved.update(entry.id for entry in entries)
        return Written(True, frozenset(entry.id for entry in entries))

    ports.answer = answer
    with pytest.raises(Refused):
        await an_evacuation(ports).run()
    assert moved == {entry.id for entry in page.entries} - {bad}, "those before it and those behind it"
    assert "remove" not in ports.calls


def _takes_all_but(bad: set[bytes], moved: set[bytes]) -> Callable[[Sequence[Entry]], Written]:
    def answer(entries: Sequence[Entry]) -> Written:
        if any(entry.id in bad for entry in entries):
            raise ValueRefused("text with NUL")
        moved.update(entry.id for entry in entries)
        return Written(True, frozenset(entry.id for entry in entries))

    return answer


async def test_an_entry_that_no_table_takes_is_quarantined_before_it_leaves_the_store() -> None:
    ports = EvacuationPorts()
    page, behind = a_page("pending", 8), a_page("pending", 2)
    page.raw[:] = [b"raw" + each for each in page.raw]
    bad = {page.entries[0].id, page.entries[5].id}
    moved: set[bytes] = set()
    ports.pages = [page, behind]
    ports.answer = _takes_all_but(bad, moved)
    evacuation = an_evacuation(ports)
    assert await evacuation.run() is EvacuationEnd.DRAINED
    assert moved == {entry.id for entry in (*page.entries, *behind.entries)} - bad, "also those of the next page"
    assert [(each.id, each.kind, each.raw, each.why) for each in ports.aside] == [
        (page.entries[at].id, "pending", page.raw[at], "text with NUL") for at in (0, 5)
    ]
    assert ports.calls[ports.calls.index("aside 2") + 1] == "remove"
    assert evacuation.moved == 8


async def test_a_page_of_nothing_but_unfit_entries_is_quarantined_at_once() -> None:
    ports = EvacuationPorts()
    page = a_page("assigned", 50)
    ports.pages = [page]
    ports.answer = _takes_all_but({entry.id for entry in page.entries}, set())
    assert await an_evacuation(ports).run() is EvacuationEnd.DRAINED
    assert ports.calls.count("aside 50") == 1


@pytest.mark.parametrize("error", [Refused("no"), Unavailable("away"), ValueRefused("not even here")])
async def test_what_cannot_even_be_quarantined_stays_in_the_store(error: Exception) -> None:
    ports = EvacuationPorts()
    ports.pages = [page := a_page("pending", 2)]
    ports.answer = _takes_all_but({page.entries[1].id}, set())
    ports.aside_fails = error
    with pytest.raises(type(error)):
        await an_evacuation(ports).run()
    assert "remove" not in ports.calls
    ports.aside_fails = None
    assert await an_evacuation(ports).run() is EvacuationEnd.DRAINED
    assert [each.id for each in ports.aside] == [page.entries[1].id]


async def test_a_superseded_rescuer_quarantines_nothing() -> None:
    ports = EvacuationPorts()
    ports.pages = [page := a_page("pending", 2)]

    def answer(entries: Sequence[Entry]) -> Written:
        if page.entries[0] in entries:
            raise ValueRefused("text with NUL")
        return Written(False, frozenset())

    ports.answer = answer
    assert await an_evacuation(ports).run() is EvacuationEnd.SUPERSEDED
    assert ports.aside == []


async def test_a_refusal_of_everything_is_no_storm() -> None:
    ports = EvacuationPorts()
    ports.pages = [a_page("pending", 512)]

    def answer(entries: Sequence[Entry]) -> Written:
        raise Refused("permission denied")

    ports.answer = answer
    with pytest.raises(Refused):
        await an_evacuation(ports).run()
    assert ports.calls.count("rescue 1") == 8
    assert len(ports.calls) < 40


async def test_kept_outcomes_are_written_under_their_own_identity() -> None:
    ports = EvacuationPorts()
    dead = Fence(BucketId(new_id()), 2, AgentId(new_id()))
    older = Fence(dead.bucket_id, 1, dead.owner)
    final = FinalRow(
        new_id(), "SUCCEEDED", 4, "payroll", "work", 2, dead.bucket_id, 2, 1, 0, 0, 5, 6, b"{}", b"", b"1", None
    )
    late = final._replace(id=new_id())
    ports.superseded = {late.id}
    hold = HoldRow(new_id(), 4, "payroll", "work", 3, 1, 0, 77, b"{}", b"", b"{}", 9)
    other = hold._replace(id=new_id())
    raw = [keep_final(dead, final), keep_final(dead, late), keep_hold(dead, hold), keep_hold(older, other)]
    ports.pages = [Page(ReplyStatus.OK, "kept", "", [], raw), a_page("claimed", 1)]
    told: list[FinalRow] = []
    evacuation = an_evacuation(ports, on_ended=told.extend)
    assert await evacuation.run() is EvacuationEnd.DRAINED
    assert ports.finals == [final, late]
    assert told == [final], "batches count it"
    assert ports.holds == [(dead, hold), (older, other)]
    assert ports.calls.index("final 2") < ports.calls.index("rescue 1")
    assert evacuation.rescued == 1  # kept ones had ended: no agent was running them


async def test_an_outcome_that_cannot_be_read_or_written_is_quarantined_and_blocks_no_other() -> None:
    ports = EvacuationPorts()
    dead = Fence(BucketId(new_id()), 2, AgentId(new_id()))
    rows = [
        FinalRow(
            new_id(), "SUCCEEDED", 4, "payroll", "work", 2, dead.bucket_id, 2, 1, 0, 0, 5, 6, b"{}", b"", b"1", None
        )
        for _ in range(4)
    ]
    raw = [b"\x93junk", *(keep_final(dead, row) for row in rows), b""]
    raw.append(keep_final(dead, rows[0]).replace(b"payroll", b"pay\xffoll"))  # no UTF-8
    raw.append(keep_final(dead, rows[1]._replace(id=b"short")))  # the driver would take the connection down with it
    ports.unfit_rows = {rows[2].id}
    ports.pages = [Page(ReplyStatus.OK, "kept", "", [], raw), a_page("pending", 1)]
    assert await an_evacuation(ports).run() is EvacuationEnd.DRAINED
    assert ports.finals == [rows[0], rows[1], rows[3]]
    assert [(each.id, each.raw) for each in ports.aside] == [
        (b"nk".ljust(16, b"\0"), raw[0]),
        (bytes(16), b""),
        (rows[0].id, raw[6]),
        (raw[7][ID_AT], raw[7]),
        (rows[2].id, raw[3]),
    ]
    assert ports.calls.index("aside 5") < ports.calls.index("remove")


async def test_a_store_with_a_higher_epoch_is_reported_with_it() -> None:
    ports = EvacuationPorts()
    ports.fence_answer = (ReplyStatus.FENCED, 9)
    evacuation = an_evacuation(ports)
    assert await evacuation.run() is EvacuationEnd.EPOCH_BEHIND
    assert evacuation.store_epoch == 9
    assert ports.calls == ["fence"]


@pytest.mark.parametrize(
    "status", [ReplyStatus.FENCED, ReplyStatus.GENERATION, ReplyStatus.ROLLBACK, ReplyStatus.CLOSED]
)
async def test_a_store_that_refuses_a_step_is_asked_again_from_the_fence_later(status: ReplyStatus) -> None:
    ports = EvacuationPorts()
    ports.pages = [Page(status, "", "", [], [])]
    assert await an_evacuation(ports).run() is EvacuationEnd.NOT_YET
    ports = EvacuationPorts()
    ports.pages = [a_page("pending")]
    ports.remove_word = status
    assert await an_evacuation(ports).run() is EvacuationEnd.NOT_YET


async def test_what_appears_before_the_close_is_moved_too() -> None:
    ports = EvacuationPorts()
    ports.closes = [ReplyStatus.NOT_EMPTY, ReplyStatus.OK]
    assert await an_evacuation(ports).run() is EvacuationEnd.DRAINED
    assert ports.calls.count("read") == 2


async def test_rows_are_swept_until_none_is_left_and_again_when_the_close_finds_one() -> None:
    ports = EvacuationPorts()
    ports.sweeps = [100, 7, 0, 1, 0]
    ports.closed = [False, True]
    evacuation = an_evacuation(ports)
    assert await evacuation.run() is EvacuationEnd.DRAINED
    assert (evacuation.swept, evacuation.moved, evacuation.rescued) == (108, 108, 53)
    assert ports.calls[-1] == "close 108 53", "the event has their number"


async def test_a_close_that_fails_with_nothing_to_sweep_is_tried_later() -> None:
    ports = EvacuationPorts()
    ports.closed = [False]
    assert await an_evacuation(ports).run() is EvacuationEnd.NOT_YET


async def test_a_rescuer_in_doubt_of_its_own_lease_stops_between_pages() -> None:
    ports = EvacuationPorts()
    ports.pages = [a_page("pending"), a_page("pending")]
    answers = iter([True, True, False])  # before the fence, then before each page
    assert await an_evacuation(ports, lambda: next(answers)).run() is EvacuationEnd.STOPPED
    assert ports.calls.count("rescue 3") == 1
