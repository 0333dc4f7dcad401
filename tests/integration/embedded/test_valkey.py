from __future__ import annotations

from pathlib import Path

import pytest
import redis

from jobmaster.embedded import BinaryOrigin, DirectoryInUse, EmbeddedError, ServerStartFailed, ValkeyServer
from tests.integration.embedded.conftest import processes_on
from tests.support.processes import free_port


def test_data_survive_a_restart_and_stop_leaves_no_process(directory: Path, valkey_origin: BinaryOrigin) -> None:
    server = ValkeyServer(directory, origin=valkey_origin)
    with server, redis.Redis.from_url(server.url) as client:
        assert server.program.origin is valkey_origin
        client.set("kept", 42)
        assert processes_on(directory)
    assert processes_on(directory) == []
    with server, redis.Redis.from_url(server.url) as client:
        assert client.get("kept") == b"42"


def test_a_killed_server_comes_back_with_what_its_log_had(directory: Path) -> None:
    with ValkeyServer(directory, settings={"appendfsync": "always"}) as server:
        with redis.Redis.from_url(server.url) as client:
            client.set("kept", 42)
        server.kill()
        assert server.pid is None
        server.start()
        with redis.Redis.from_url(server.url) as client:
            assert client.get("kept") == b"42"


def test_it_never_evicts_and_keeps_an_append_only_file_but_no_snapshots(valkey_server: ValkeyServer) -> None:
    wanted = {"maxmemory-policy": "noeviction", "appendonly": "yes", "appendfsync": "everysec", "save": "", "port": "0"}
    with redis.Redis.from_url(valkey_server.url) as client:
        assert {name: client.config_get(name)[name] for name in wanted} == wanted


def test_functions_work(valkey_server: ValkeyServer, cluster_name: str) -> None:
    name = cluster_name.replace("-", "_")
    library = f"#!lua name={name}\nredis.register_function('{name}', function() return 7 end)"
    with redis.Redis.from_url(valkey_server.url) as client:
        client.function_load(library)
        assert client.fcall(name, 0) == 7
        client.function_delete(name)


def test_tcp_asks_for_the_password(directory: Path) -> None:
    with ValkeyServer(directory, port=free_port()) as server:
        for url in (server.tcp_url, server.url):
            with redis.Redis.from_url(url) as client:
                assert client.ping()
        with (
            redis.Redis.from_url(server.tcp_url.replace("@", "-wrong@")) as client,
            pytest.raises(redis.AuthenticationError),
        ):
            client.ping()


def test_without_a_port_there_is_no_tcp_url(valkey_server: ValkeyServer) -> None:
    with pytest.raises(EmbeddedError, match="no TCP port"):
        _ = valkey_server.tcp_url


def test_a_second_server_on_the_directory_is_refused(directory: Path) -> None:
    with ValkeyServer(directory), pytest.raises(DirectoryInUse, match="in use by process"):
        ValkeyServer(directory).start()


def test_a_failed_start_shows_the_end_of_the_log(directory: Path) -> None:
    with pytest.raises(ServerStartFailed, match="no-such-setting"):
        ValkeyServer(directory, settings={"no-such-setting": "1"}).start()
    assert processes_on(directory) == []
