"""The function library: every file says what it does, and programs of different builds do not fight over a server."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable

import pytest
import redis.asyncio

from jobmaster.agentstore import library, producer, store
from jobmaster.agentstore.errors import OutOfMemory
from jobmaster.embedded import ValkeyServer
from jobmaster.model.errors import CodeError, StoreRefused
from jobmaster.ports import ReplyStatus
from tests.integration.store.conftest import Connect
from tests.integration.store.fixture import assert_ok, new_fence

HEADER = ("keys", "args", "answers", "effects", "why")
FUNCTIONS = [name for name in library.sources() if name != "prelude"]
NewServer = Callable[..., ValkeyServer]


def _header(name: str) -> str:
    lines = library.sources()[name].splitlines()
    return "\n".join(line for line in lines[: next(i for i, line in enumerate(lines) if not line.startswith("--"))])


@pytest.mark.parametrize("name", library.sources())
def test_every_file_has_a_header(name: str) -> None:
    header = _header(name)
    assert header.startswith(f"-- {name}: ")
    for field in HEADER:
        assert re.search(rf"^-- {field}: \S", header, re.MULTILINE), f"{name}.lua does not say its {field}"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_file_registers_one_function_with_its_name_and_declared_flags(name: str) -> None:
    source = library.sources()[name]
    assert re.findall(r"function_name = '(\w+)'", source) == [f"{library.PREFIX}{name}"]
    said = re.search(r"^-- flags: ([\w-]+)", _header(name), re.MULTILINE)
    assert (said.group(1) if said else "none") == ", ".join(re.findall(r"flags = \{ '([^}]*)' \}", source) or ["none"])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_file_is_used_by_the_adapter(name: str) -> None:
    used = {value for module in (producer, store) for value in vars(module).values() if isinstance(value, bytes)}
    assert f"{library.PREFIX}{name}".encode() in used


@pytest.mark.parametrize("name", FUNCTIONS)
def test_answers_that_a_function_gives_are_those_its_header_names(name: str) -> None:
    source = library.sources()[name]
    body = source[len(_header(name)) :]
    given = set(re.findall(r"\{ '([A-Z]+)'", body)) | set(re.findall(r"^ +'([A-Z]+)',$", body, re.MULTILINE))
    if "refusal(" in body:
        given |= set(re.findall(r"return \{ '([A-Z]+)'", library.sources()["prelude"]))
        if re.search(r"refusal\(keys\[1\], args\)", body):
            given.remove("CLOSED")
    answers = re.search(r"^-- answers: (.*?)^-- effects:", _header(name), re.MULTILINE | re.DOTALL)
    assert answers is not None
    assert given == set(re.findall(r"\b[A-Z]{2,}\b", re.sub(r"\(.*?\)", "", answers.group(1))))


def test_the_build_number_is_raised_with_every_change() -> None:
    number, digest = library.recorded_build()
    assert number >= 1
    expected = hashlib.sha256("\n".join(library.sources().values()).encode()).hexdigest()
    assert digest == expected, (
        f"a Lua file was changed: write '{number + 1} {expected}' into lua/BUILD"
        " (the same number will do while this build has not left your machine)"
    )


async def _code(url: str) -> bytes:
    async with redis.asyncio.Redis.from_url(url) as raw:
        answer = await raw.function_list(library.LIBRARY, withcode=True)
    (entry,) = answer
    fields = entry if isinstance(entry, dict) else dict(zip(entry[::2], entry[1::2], strict=True))
    code: bytes = fields[b"library_code"]
    return code


async def _load(url: str, code: bytes) -> None:
    async with redis.asyncio.Redis.from_url(url) as raw:
        await raw.function_load(code.decode(), replace=True)


def _of_build(number: int, *, remark: str = "") -> bytes:
    own = library.recorded_build()[0]
    return library.text().replace(b"-- build %d\n" % own, b"-- build %d\n%s" % (number, remark.encode()), 1)


async def test_an_agent_loads_the_library_and_finds_it_again(connect: Connect, new_valkey: NewServer) -> None:
    server = new_valkey()
    await connect(url=server.url)
    assert await _code(server.url) == library.text()
    await connect(url=server.url)
    assert await _code(server.url) == library.text()


async def test_an_older_build_gives_way(connect: Connect, new_valkey: NewServer) -> None:
    server = new_valkey()
    await _load(server.url, _of_build(0))
    await connect(url=server.url)
    assert await _code(server.url) == library.text()


async def test_an_earlier_build_that_was_loaded_meanwhile_gives_way_to_the_call_that_it_does_not_understand(
    connect: Connect, new_valkey: NewServer
) -> None:
    """A store that was restarted without its log has no functions. In a rolling upgrade an older agent may be first."""
    server = new_valkey()
    store_ = await connect(url=server.url)
    fence = new_fence()
    await assert_ok(store_.open_bucket(fence))
    earlier = _of_build(0).replace(b"#args < 6 or #args > 8", b"#args ~= 6")
    assert earlier != _of_build(0)
    await _load(server.url, earlier)
    assert (await store_.claim(fence, "list-1", 1)).status is ReplyStatus.OK
    assert await _code(server.url) == library.text()


async def test_a_full_store_takes_no_other_build_and_the_error_names_the_fix(
    connect: Connect, new_valkey: NewServer
) -> None:
    server = new_valkey()
    await _load(server.url, _of_build(0))
    async with redis.asyncio.Redis.from_url(server.url) as raw:
        await raw.config_set("maxmemory", 1)
        with pytest.raises(OutOfMemory, match="functions of this build cannot be loaded"):
            await connect(url=server.url)
        await raw.config_set("maxmemory", 0)
    await connect(url=server.url)
    assert await _code(server.url) == library.text()


async def test_arguments_that_our_own_build_refuses_are_a_defect(connect: Connect, new_valkey: NewServer) -> None:
    store_ = await connect(url=new_valkey().url)
    with pytest.raises(CodeError, match="refused the arguments"):
        await store_.claim(new_fence(), "list-1", -1)


async def test_a_newer_build_stays(connect: Connect, new_valkey: NewServer) -> None:
    server = new_valkey()
    newer = _of_build(library.recorded_build()[0] + 1)
    await _load(server.url, newer)
    store_ = await connect(url=server.url)
    assert await _code(server.url) == newer
    await assert_ok(store_.open_bucket(new_fence()))


def test_of_two_texts_exactly_one_gives_way_so_that_agents_do_not_flap() -> None:
    texts = [library.text(), *[_of_build(n, remark=f"-- variant {v}\n") for n in (0, 1, 2, 9) for v in range(3)]]
    for one in texts:
        for other in texts:
            gives_way = [
                library.build_of(one) > library.build_of(other),
                library.build_of(other) > library.build_of(one),
            ]
            assert sum(gives_way) == (0 if one == other else 1)
    assert not library.must_load(library.text())
    assert library.must_load(None)
    assert library.must_load(b"#!lua name=jobmaster_v2\nno build at all")


async def test_an_altered_library_of_the_same_build_is_not_taken_for_ours(
    connect: Connect, new_valkey: NewServer
) -> None:
    """One of (ours, altered) is the higher; when it is ours, it replaces the other."""
    own = library.recorded_build()[0]
    lower = next(
        text
        for text in (_of_build(own, remark=f"-- altered {n}\n") for n in range(1000))
        if library.build_of(text) < library.build_of(library.text())
    )
    server = new_valkey()
    await _load(server.url, lower)
    await connect(url=server.url)
    assert await _code(server.url) == library.text()


async def test_libraries_of_other_protocol_versions_live_beside_ours(connect: Connect, new_valkey: NewServer) -> None:
    server = new_valkey()
    next_version = library.text().replace(b"jobmaster_v2", b"jobmaster_v3").replace(b"'jm2_", b"'jm3_")
    await _load(server.url, next_version)
    store_ = await connect(url=server.url)
    await assert_ok(store_.open_bucket(new_fence()))
    async with redis.asyncio.Redis.from_url(server.url) as raw:
        assert len(await raw.function_list()) == 2


async def test_a_store_with_buckets_of_an_older_protocol_is_refused_until_it_is_empty(
    connect: Connect, new_valkey: NewServer, cluster_name: str
) -> None:
    """Keys of protocol 1 have other names: outcomes that a bucket keeps there would be taken for none."""
    server = new_valkey()
    store_ = await connect(url=server.url)
    fence = new_fence()
    await assert_ok(store_.open_bucket(fence))
    async with redis.asyncio.Redis.from_url(server.url) as raw:
        await raw.hset(store_.keys.store, "protocol", "1")
        with pytest.raises(
            StoreRefused, match=r"holds 1 open bucket\(s\) of protocol 1, ours is 2 .*stop them with SIGTERM"
        ):
            await connect(url=server.url)
        assert await raw.hget(store_.keys.store, "protocol") == b"1", "programs of the earlier version still start"
        await assert_ok(store_.close_intake(fence))
        await assert_ok(store_.close_if_empty(fence))
        await connect(url=server.url)
        assert await raw.hget(store_.keys.store, "protocol") == b"2"
