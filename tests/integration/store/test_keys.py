"""The key grammar: one bucket is one cluster slot, and names cannot break out of it."""

from __future__ import annotations

import pytest
from redis.crc import key_slot

from jobmaster.agentstore.keys import Keys
from jobmaster.agentstore.store import AgentStore
from jobmaster.clock import new_id
from jobmaster.model.errors import CodeError
from jobmaster.settings.model import StoreSettings


def test_all_keys_of_a_bucket_lie_in_one_slot() -> None:
    keys = Keys("default")
    slots = set()
    for _ in range(50):
        bucket = keys.bucket(new_id())
        of_bucket = {key_slot(key) for key in (*bucket[:-1], bucket.claimed("a"), bucket.claimed("b"))}
        assert len(of_bucket) == 1
        slots |= of_bucket
    assert len(slots) > 40
    assert len({key_slot(keys.store), key_slot(keys.agent(new_id())), key_slot(keys.agent(new_id()))}) == 1


def test_a_bucket_is_read_back_from_each_of_its_keys_and_from_no_other() -> None:
    keys, other = Keys("default"), Keys("default-b")
    bucket_id = new_id()
    bucket = keys.bucket(bucket_id)
    for key in (*bucket[:-1], bucket.claimed("a")):
        assert keys.bucket_of(key) == bucket_id
        assert other.bucket_of(key) is None
    assert keys.bucket_of(keys.store) is None
    assert keys.bucket_of(keys.agent(new_id())) is None
    assert keys.bucket_of(b"jm:{default:*}:meta") is None


@pytest.mark.parametrize("cluster", ["", "A", "a}b", "a{b", "a:b", "a b", "a*", "x" * 49])
def test_a_cluster_name_that_could_break_the_grammar_is_a_mistake_of_ours(cluster: str) -> None:
    with pytest.raises(CodeError):
        Keys(cluster)


@pytest.mark.parametrize("name", ["", "a b", "a}b", "a\n", "x" * 65])
def test_a_list_name_that_could_break_the_grammar_is_a_mistake_of_ours(name: str) -> None:
    with pytest.raises(CodeError):
        Keys("default").bucket(new_id()).claimed(name)


def test_a_bucket_id_has_16_bytes() -> None:
    with pytest.raises(CodeError):
        Keys("default").bucket(b"short")


@pytest.mark.parametrize(
    "url",
    [
        "redis://h",
        "redis://:p@h:7000/3",
        "rediss://u:p@h:7000/0",
        "rediss://h?ssl_cert_reqs=none&ssl_check_hostname=false",
        "unix:///run/store.sock",
        "unix://:p@/run/store.sock?db=2",
    ],
)
def test_urls_of_every_kind_are_understood(url: str) -> None:
    AgentStore(cluster="default", name="default", url=url, settings=StoreSettings())
