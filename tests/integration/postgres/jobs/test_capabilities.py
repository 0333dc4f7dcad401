"""Jobs that require a capability stay in the master until an agent that has it fetches them."""

from __future__ import annotations

import time

import pytest

from jobmaster.clock import new_id
from jobmaster.codec import encode_headers
from jobmaster.model.agent import Agent, AgentState, HandlerSpec
from jobmaster.model.job import Headers, NewJob
from jobmaster.ports import FetchScope
from jobmaster.rules.capabilities import required_words
from tests.integration.postgres.fixture import LANE, PRIORITY, MasterFixture

TIMED = encode_headers(Headers(complete_seconds=60.0))
NEWER = b'{"requires":["complete_time","orbit"],"orbit":1}'


def held(headers: bytes, handler: str = "handler") -> NewJob:
    return NewJob(new_id(), PRIORITY, LANE, handler, b"{}", headers, int((time.time() - 90.0) * 1e6))


async def agent_with(db: MasterFixture, *words: str, handler: str = "handler") -> bytes:
    agent_id = new_id()
    agent = Agent(
        id=agent_id, name="agent", host="host", pid=1, version="0", mode="full", store="store", weight=1,
        state=AgentState.ACTIVE, lease_us=0, lease_seconds=60.0, started_us=0, capabilities=words,
    )  # fmt: skip
    await db.master.members.register(agent, [LANE], [HandlerSpec(name=handler, digest="d", schema={})])
    return agent_id


async def test_onboarding_leaves_jobs_that_require_more_than_the_owner_has(db: MasterFixture) -> None:
    plain, timed, newer = held(b""), held(TIMED), held(NEWER)
    await db.master.intake.insert_held([timed, newer, plain])

    async def fetched(*words: str) -> set[bytes]:
        fence = await db.bucket()
        answer = await db.master.onboarding.onboard(fence, LANE, PRIORITY, 0.0, 10, None, (), FetchScope(words))
        return {entry.id for entry in answer.entries}

    assert await fetched() == {plain.id}
    assert await fetched("orbit") == set()
    assert await fetched("complete_time") == {timed.id}
    assert await fetched("complete_time", "orbit", "more") == {newer.id}


@pytest.mark.parametrize(
    "headers",
    [
        b"",
        b"{",
        TIMED,
        NEWER,
        encode_headers(Headers(metadata={"requires": '{"requires":["no"]'})),
        b'{"requires":["a"],"tags":["\\u0000]"]}',
        b'{"requires":["a","b',
        b'{"requires":["\xff"]}',
    ],
)
async def test_the_master_reads_the_words_as_programs_do(db: MasterFixture, headers: bytes) -> None:
    words = await db.sql.fetchval("SELECT required_words($1)", headers)
    if b"\xff" in headers:
        assert len(words) == len(required_words(headers)) == 1, "unreadable, and no program has that word"
    else:
        assert set(words) == required_words(headers)


async def test_overdue_jobs_for_which_no_owner_has_the_capability_are_named_with_it(db: MasterFixture) -> None:
    await db.bucket(await agent_with(db))
    plain, timed, lost = held(b""), held(TIMED), held(TIMED, "lost")
    await db.master.intake.insert_held([plain, timed, lost])
    found = {each.cause.handler: each for each in await db.master.unserved.find(60.0, 1000)}
    assert found.keys() == {"handler", "lost"}
    assert found["handler"].jobs == 1, "the plain one has an agent"
    assert found["handler"].cause.requires == ("complete_time",)
    assert "has the capability complete_time" in found["handler"].cause.reason
    assert "update the agents" in found["handler"].cause.remedy
    assert found["lost"].cause.requires == (), "without the handler the capability is of no use"
    causes = await db.master.queries.unserved_causes([plain.id, timed.id, lost.id])
    assert causes == {timed.id: found["handler"].cause, lost.id: found["lost"].cause}
    await db.bucket(await agent_with(db, "complete_time"))
    (left,) = await db.master.unserved.find(60.0, 1000)
    assert left.cause.handler == "lost"


async def test_a_submit_in_sql_requires_what_a_submit_of_the_client_does(db: MasterFixture) -> None:
    options = '{"allow_unregistered": true, "tags": ["a"], "complete_time": 60}'
    job_id = await db.sql.fetchval("SELECT submit('handler', '{}', $1::text::jsonb)", options)
    headers = await db.sql.fetchval("SELECT headers FROM job WHERE id = $1", job_id)
    assert headers == encode_headers(Headers(tags=("a",), complete_seconds=60.0))
    options = '{"allow_unregistered": true, "complete_time": 0}'
    job_id = await db.sql.fetchval("SELECT submit('handler', '{}', $1::text::jsonb)", options)
    assert await db.sql.fetchval("SELECT headers FROM job WHERE id = $1", job_id) == b'{"complete_seconds":0.0}'
