"""The fixtures of the whole test tree keep their word."""

from __future__ import annotations

from collections.abc import Callable

import asyncpg
import redis

from jobmaster.embedded import ValkeyServer


async def test_a_test_gets_an_empty_database(master_dsn: str) -> None:
    connection = await asyncpg.connect(master_dsn)
    try:
        assert await connection.fetchval("SELECT current_database()") != "jobmaster"
        assert await connection.fetchval("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == 0
    finally:
        await connection.close()


def test_the_shared_store_answers(store_url: str, cluster_name: str) -> None:
    with redis.Redis.from_url(store_url) as client:
        assert client.set(f"{{{cluster_name}}}", 1)
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        assert client.config_get("appendonly") == {"appendonly": "yes"}


def test_further_stores_are_separate(
    new_valkey: Callable[..., ValkeyServer], store_url: str, cluster_name: str
) -> None:
    mine = new_valkey(appendfsync="always")
    with redis.Redis.from_url(mine.url) as client, redis.Redis.from_url(store_url) as shared:
        assert client.config_get("appendfsync") == {"appendfsync": "always"}
        client.set(cluster_name, 1)
        assert shared.get(cluster_name) is None
