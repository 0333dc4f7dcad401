"""An entry that the master can never store, or that cannot be decoded, is kept and delays no other. On real servers."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from jobmaster.clock import new_id
from jobmaster.codec import encode_entry
from jobmaster.doctor.checks import quarantine_finding
from jobmaster.doctor.findings import CheckStatus
from jobmaster.master.outcomes import Outcomes
from jobmaster.master.reports import Reader
from jobmaster.model.job import Entry
from jobmaster.ports import ReplyStatus, UnstorableEntry
from jobmaster_agents.event_log import Event
from jobmaster_agents.outcomes.kept_codec import keep_final
from tests.integration.agents.fixture import HIGH_WATER, AgentKilled, CutMoment, DrivenCluster, Owner


async def _poisoned(owner: Owner) -> tuple[list[bytes], list[bytes]]:
    """Entries and outcomes that cannot be stored or decoded, at the head of every place of a bucket; and the
    ids of good ones behind each."""
    fence, store, good = owner.fence, owner.store, []
    bad = [Entry(new_id(), 1, "nul\x00", b"{}") for _ in range(4)]
    for entry in (bad[0], bad[3]):  # in one claimed list
        answer = await store.submit(fence.bucket_id, [encode_entry(entry)], **HIGH_WATER)
        assert answer.status is ReplyStatus.OK
        good += await owner.submit(2)
        if entry is bad[0]:
            await owner.claim("one", 3)
    in_kept = await owner.submit(1)
    lying = await owner.claim("two", 4)
    outcomes = [b"\x93junk", *(keep_final(fence, owner.final(entry)) for entry in lying)]
    assert await store.keep_outcomes(fence, outcomes, ["two"]) is ReplyStatus.OK
    assert await store.submit(fence.bucket_id, [encode_entry(bad[1])], **HIGH_WATER)
    good += await owner.submit(2)
    good += await owner.onboard(2)
    assert await store.assign(fence, [(0, encode_entry(bad[2]))]) is ReplyStatus.OK
    return [encode_entry(each) for each in bad[:3]] + outcomes[:2], good + in_kept


async def test_entries_that_no_table_accepts_go_to_quarantine_and_block_no_others(
    driven: DrivenCluster, caplog: pytest.LogCaptureFixture
) -> None:
    owner, rescuer = await driven.owner(), await driven.agent()
    unfit, good = await _poisoned(owner)
    await owner.die()
    await rescuer.rescue(page_jobs=3).tick()
    assert await driven.bucket_state(owner.fence.bucket_id) == ("READY_TO_DELETE", 2)
    states = {job_id: after[0] for job_id, after in (await driven.jobs()).items()}
    assert states.keys() == set(good)
    assert sorted(states.values()) == ["HELD"] * 6 + ["SUCCEEDED"] * 3
    kept = await driven.rows("SELECT job_id, bucket_id, reason, entry FROM quarantine")
    assert sorted(row["entry"] for row in kept) == sorted(unfit)
    assert {row["bucket_id"].bytes for row in kept} == {owner.fence.bucket_id}
    assert sorted(row["reason"].split()[0] for row in kept) == ["assigned", "claimed", "kept", "kept", "pending"]
    assert all("0x00" in row["reason"] for row in kept if row["entry"] != b"\x93junk")
    assert rescuer.telemetry.entries_put_aside == len(unfit)
    told = [record for record in caplog.records if record.getMessage() == Event.ENTRY_QUARANTINED]
    assert len(told) == len(unfit)
    reader = await Reader.connect(dsn=driven.dsn, schema=driven.schema)
    finding = await quarantine_finding(reader)
    await reader.close()
    assert finding.status is CheckStatus.WARN
    assert f"{len(unfit)} entries are in quarantine" in finding.detail


async def test_what_the_quarantine_does_not_take_either_stays_in_the_store(driven: DrivenCluster) -> None:
    owner, rescuer = await driven.owner(), await driven.agent()
    entry = Entry(new_id(), 1, "nul\x00", b"{}")
    await owner.store.submit(owner.fence.bucket_id, [encode_entry(entry)], **HIGH_WATER)
    await owner.die()
    await driven.rows("ALTER TABLE quarantine ADD CONSTRAINT shut CHECK (false)")
    task = rescuer.rescue()
    await task.tick()
    depth = (await rescuer.store.depths([owner.fence.bucket_id]))[0]
    assert depth is not None
    assert (depth.pending, len(task.unfinished), rescuer.telemetry.entries_put_aside) == (1, 1, 0)
    assert rescuer.telemetry.drains_postponed == 1
    await driven.rows("ALTER TABLE quarantine DROP CONSTRAINT shut")
    await rescuer.rescue().tick()
    assert [row["entry"] for row in await driven.rows("SELECT entry FROM quarantine")] == [encode_entry(entry)]
    assert (await driven.bucket_state(owner.fence.bucket_id))[0] == "READY_TO_DELETE"


async def test_a_master_that_refuses_every_write_puts_no_entry_into_quarantine(driven: DrivenCluster) -> None:
    """Missing rights, or a trigger that raises: the entries are not the cause, and the next try may succeed."""
    owner, rescuer = await driven.owner(), await driven.agent()
    ids = await owner.submit(3)
    await owner.die()
    await driven.rows(
        "CREATE FUNCTION shut() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'shut'; END $$"
    )
    await driven.rows("CREATE TRIGGER shut BEFORE INSERT ON job FOR EACH ROW EXECUTE FUNCTION shut()")
    await rescuer.rescue().tick()
    assert rescuer.telemetry.drains_postponed == 1
    assert await driven.rows("SELECT FROM quarantine") == []
    await driven.rows("DROP TRIGGER shut ON job")
    await rescuer.rescue().tick()
    assert await driven.jobs() == dict.fromkeys(ids, ("HELD", 2, 0))


class _DiesPuttingAside:
    def __init__(self, outcomes: Outcomes, when: CutMoment) -> None:
        self._outcomes = outcomes
        self._when = when

    def __getattr__(self, name: str) -> object:
        return getattr(self._outcomes, name)

    async def quarantine(self, bucket_id: bytes, entries: Sequence[UnstorableEntry]) -> None:
        if self._when is CutMoment.AFTER:
            await self._outcomes.quarantine(bucket_id, entries)
        raise AgentKilled


@pytest.mark.parametrize("when", list(CutMoment))
async def test_a_rescuer_that_dies_around_the_quarantine_leaves_it_to_the_next(
    driven: DrivenCluster, when: CutMoment
) -> None:
    owner, dying, heir = await driven.owner(), await driven.agent(), await driven.agent()
    unfit, good = await _poisoned(owner)
    await owner.die()
    dying.master.outcomes = _DiesPuttingAside(dying.master.outcomes, when)  # type: ignore[assignment]
    with pytest.raises(AgentKilled):
        await dying.rescue().tick()
    await heir.master.members.end_agent(dying.agent_id, dead=True, reason="the test killed it")
    await heir.rescue().tick()
    assert (await driven.jobs()).keys() == set(good)
    kept = await driven.rows("SELECT entry FROM quarantine")
    assert sorted(row["entry"] for row in kept) == sorted(unfit), "each once"
