"""URLs of the servers: any password can be inserted, ambiguous URLs are refused, no part of a URL is quoted."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

import asyncpg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio.connection import parse_url

from jobmaster.master.driver.connection import DatabaseConnector, place_of
from jobmaster.model.errors import ConfigError
from jobmaster.settings import urls
from jobmaster.settings.loader import load_settings
from jobmaster.settings.masking import mask_secrets
from jobmaster.settings.problems import InvalidSettings
from jobmaster.settings.urls import UrlError, check_store_url, parse_cluster_url, parse_dsn, parse_sentinel_url

PASSWORD = st.text(st.characters(exclude_categories=["C"]), min_size=1, max_size=20)


def loaded(text: str, env: dict[str, str], tmp_path: Path) -> Any:
    file = tmp_path / "jobmaster.yaml"
    file.write_text(text, encoding="utf-8")
    return load_settings(file, env).settings


def password_of(dsn: str) -> str | None:
    """What the driver of PostgreSQL reads out of it."""
    parse = vars(asyncpg.connect_utils)["_parse_connect_dsn_and_args"]
    _, parameters = parse(
        dsn=dsn, host=None, port=None, user=None, password=None, passfile=None, database=None, ssl=None, service=None,
        servicefile=None, direct_tls=None, server_settings=None, target_session_attrs=None, krbsrvname=None, gsslib=None,
    )  # fmt: skip
    password: str | None = parameters.password
    return password


@given(PASSWORD)
def test_any_password_can_be_put_into_a_url_and_arrives_as_it_is(
    tmp_path_factory: pytest.TempPathFactory, password: str
) -> None:
    text = (
        "master: {dsn: 'postgresql://app:${PW}@db.example:6000/jobs?sslmode=prefer'}\n"
        "stores:\n"
        "  default: {url: 'redis://:${PW}@host:6379/2'}\n"
        "  other: {url: 'unix:///run/valkey.sock?db=1&password=${PW}'}\n"
    )
    settings = loaded(text, {"PW": password}, tmp_path_factory.mktemp("file"))
    assert password_of(settings.master.dsn) == password
    assert place_of(settings.master.dsn) == "db.example:6000/jobs"
    assert parse_url(settings.stores["default"].url)["password"] == password
    assert parse_url(settings.stores["other"].url)["password"] == password


@pytest.mark.parametrize(
    ("written", "env", "expected"),
    [
        ("${URL}", {"URL": "postgresql://a:p%40ss@h/db"}, "postgresql://a:p%40ss@h/db"),
        ("postgresql://${USER}:${PW}@${HOSTS}/${DB}", {"USER": "a b", "PW": "p@ss", "HOSTS": "h1:1,h2:2", "DB": "jobs"},
         "postgresql://a%20b:p%40ss@h1:1,h2:2/jobs"),
        ("postgresql://h/db?${OPTIONS}", {"OPTIONS": "user=a&sslmode=require"}, "postgresql://h/db?user=a&sslmode=require"),
        ("postgresql://h/db?user=${USER}&passfile=/x", {"USER": "a&b"}, "postgresql://h/db?user=a%26b&passfile=/x"),
        ("postgresql://a:${PW:-a@b}@h/db", {}, "postgresql://a:a%40b@h/db"),
        ("postgresql://a:$${PW}@h/db", {}, "postgresql://a:${PW}@h/db"),
        ("postgresql://a:${file:p@th/pw}@h/db", {}, "postgresql://a:from%20file@h/db"),
    ],
)  # fmt: skip
def test_what_is_encoded_is_the_part_that_was_put_in_and_nothing_else(
    tmp_path: Path, written: str, env: dict[str, str], expected: str
) -> None:
    (tmp_path / "p@th").mkdir()
    (tmp_path / "p@th" / "pw").write_text("from file\n")
    assert loaded(f"master: {{dsn: '{written}'}}\n", env, tmp_path).master.dsn == expected


HOSTILE = [
    "s3c/ret",
    "s3c#ret",
    "s3c@ret",
    "s3c?ret",
    "s3c@r/e:t%1",
    "s3c[ret",
    "12?s3c=1",
    "s3c\u2100ret",
    "1/s3c",
    "#s3c",
]


@pytest.mark.parametrize("password", HOSTILE)
@pytest.mark.parametrize(
    ("key", "form"),
    [
        ("master.dsn", "postgresql://app:{}@localhost:5499/jobs"),
        ("stores.default.url", "redis://:{}@localhost:6399/0"),
        ("stores.default.url", "unix://:{}@/run/valkey.sock"),
    ],
)
def test_a_raw_password_that_breaks_its_url_is_refused_and_not_quoted(
    tmp_path: Path, key: str, form: str, password: str
) -> None:
    url = form.format(password)
    with pytest.raises(InvalidSettings) as caught:
        load_settings(None, {"WHOLE": url}, [f"{key}=${{WHOLE}}"])
    with pytest.raises(InvalidSettings):
        load_settings(None, {}, [f"{key}={url}"])
    assert caught.value.exit_code == 78
    assert f"{key}: this URL cannot be used" in str(caught.value)
    for part in ("s3c", "ret"):
        assert part not in str(caught.value)
        assert part not in str(caught.value.details)


@given(st.text(max_size=30), st.sampled_from(["postgresql://{}", "postgresql://a:{}@h/d", "postgresql://h/{}?{}"]))
def test_reading_a_dsn_ends_in_a_place_or_in_one_kind_of_error(text: str, form: str) -> None:
    dsn = form.format(text, text)
    try:
        url = parse_dsn(dsn)
    except UrlError:
        with pytest.raises(ConfigError):
            DatabaseConnector(dsn)
    else:
        assert str(url) == place_of(dsn) == DatabaseConnector(dsn).place


@pytest.mark.parametrize(
    "dsn", ["host=h dbname=d password=s3cret", "password=s3cret", "mysql://u:s3cret@h/d", "s3cret"]
)
def test_a_dsn_of_another_form_is_refused_and_not_quoted(dsn: str) -> None:
    """An option of a data source comes here without the check of the configuration."""
    with pytest.raises(ConfigError, match="no URL of PostgreSQL") as caught:
        DatabaseConnector(dsn)
    assert "s3cret" not in f"{caught.value}{caught.value.hint}{place_of(dsn)}"


@pytest.mark.parametrize(
    ("dsn", "place"),
    [
        ("postgresql://u:p@h1,h2/db", "h1:5432,h2:5432/db"),
        ("postgresql://u:p@h1:1,h2:2/db?target_session_attrs=any", "h1:1,h2:2/db"),
        ("postgresql://[::1]:5433/db", "::1:5433/db"),
        ("postgresql:///db?host=/run/pg&port=6000", "/run/pg:6000/db"),
        ("postgresql:///db?host=a,b&port=1,2", "a:1,b:2/db"),
        ("postgres://u@h", "h:5432/"),
        ("postgresql://", "localhost:5432/"),
    ],
)
def test_hosts_and_database_of_a_dsn(dsn: str, place: str) -> None:
    assert str(parse_dsn(dsn)) == place


@pytest.mark.parametrize(
    ("dsn", "words"),
    [
        ("postgresql://h:99999/db", "port is not a number from 1 to 65535"),
        ("postgresql://h:0/db", "port is not a number"),
        ("postgresql://h1,,h2/db", "a host in it"),
        ("postgresql://h/db?host", "not a list of parameters"),
        ("postgresql:///db?host=a,b,c&port=1,2", "another number of ports"),
        ("postgresql://h/db?sslmode=bogus", "sslmode in its query is not one"),
        ("postgresql://h/db?target_session_attrs=master", "target_session_attrs in its query is not one"),
    ],
)
def test_what_is_wrong_with_a_dsn_is_one_problem_of_the_configuration(dsn: str, words: str) -> None:
    with pytest.raises(InvalidSettings, match=words) as caught:
        load_settings(None, {}, [f"master.dsn={dsn}"])
    assert len(caught.value.details) == 1


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("redis://h:99999/0", "port is not a number"),
        ("redis://h:6379/jobs", "not the number of a database"),
        ("redis://h1,h2/0", "several hosts"),
    ],
)
def test_what_is_wrong_with_the_url_of_a_store(url: str, words: str) -> None:
    with pytest.raises(UrlError, match=words):
        check_store_url(url)
    with pytest.raises(InvalidSettings, match=words):
        load_settings(None, {}, [f"stores.default.url={url}"])


@pytest.mark.parametrize(
    "url", ["redis://h", "redis://u:p@h:1/", "rediss://[::1]/1?ssl_ca_certs=/x", "unix:///run/s?db=1"]
)
def test_usual_urls_of_stores_are_fine(url: str) -> None:
    check_store_url(url)


def test_a_url_of_sentinels_is_taken_apart() -> None:
    url = "rediss+sentinel://app:p%40ss@h1,[::1]:26380/shop.jobs/2?ssl_ca_certs=/ca.pem&sentinel_username=s&sentinel_password=a%26b"
    found = parse_sentinel_url(url)
    assert found is not None
    assert found.sentinels == (("h1", 26379), ("::1", 26380))
    assert (found.group, found.login) == ("shop.jobs", {"username": "s", "password": "a&b"})
    options: dict[str, Any] = dict(parse_url(found.server))
    assert (options["username"], options["password"], options["db"]) == ("app", "p@ss", 2)
    assert options["ssl_ca_certs"] == "/ca.pem"
    assert options["connection_class"].__name__ == "SSLConnection"
    assert not any(name.startswith("sentinel_") for name in options)
    assert parse_sentinel_url("redis://h1/0") is None


@pytest.mark.parametrize(
    ("url", "mistake"),
    [
        ("redis+sentinel:///jobs/0", "names no Sentinel"),
        ("redis+sentinel://h1,,h2/jobs", "a host in it cannot be understood"),
        ("redis+sentinel://h1", "not the name of a group"),
        ("redis+sentinel://h1/jobs/one", "not the name of a group"),
        ("redis+sentinel://h1:0/jobs", "its port"),
        ("redis+sentinel://h1/jobs?sentinel_pass=x", "begins with sentinel_"),
        ("redis://h1,h2/0", "names several hosts"),
    ],
)
def test_a_url_of_sentinels_with_a_mistake_is_refused(url: str, mistake: str) -> None:
    with pytest.raises(UrlError, match=mistake):
        check_store_url(url)


def test_an_address_in_brackets_behind_another_host_is_taken_apart_by_every_version_of_python(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def split(url: str) -> SplitResult:
        found = urlsplit(url)
        if "[" in found.netloc.rpartition("@")[2][1:]:
            raise ValueError("Invalid IPv6 URL")  # from 3.11.12, 3.12.9 and 3.13.2 on
        return found

    monkeypatch.setattr(urls, "urlsplit", split)
    found = parse_sentinel_url("redis+sentinel://:p%5Bss@h1,[::1]:26380/jobs")
    assert found is not None
    assert found.sentinels == (("h1", 26379), ("::1", 26380))
    assert dict(parse_url(found.server))["password"] == "p[ss", "what is encoded stays so"


def test_a_url_of_a_server_cluster_is_taken_apart() -> None:
    url = "rediss+cluster://app:p%40ss@h1,[::1]:7000/0?ssl_ca_certs=/ca.pem"
    found = parse_cluster_url(url)
    assert found is not None
    assert found.nodes == (("h1", 6379), ("::1", 7000))
    options: dict[str, Any] = dict(parse_url(found.server))
    assert (options["username"], options["password"], options["ssl_ca_certs"]) == ("app", "p@ss", "/ca.pem")
    assert mask_secrets(url) == "rediss+cluster://app:***@h1,[::1]:7000/0?ssl_ca_certs=/ca.pem"
    assert parse_cluster_url("redis://h1/0") is None


@pytest.mark.parametrize(
    ("url", "mistake"),
    [
        ("redis+cluster://", "names no node"),
        ("redis+cluster://h1,,h2", "a host in it cannot be understood"),
        ("redis+cluster://h1/1", "neither empty nor database 0"),
        ("redis+cluster://h1:0", "its port"),
    ],
)
def test_a_url_of_a_server_cluster_with_a_mistake_is_refused(url: str, mistake: str) -> None:
    with pytest.raises(UrlError, match=mistake):
        check_store_url(url)


def test_passwords_of_servers_and_sentinels_are_put_in_and_masked(tmp_path: Path) -> None:
    text = "stores:\n  default: {url: 'redis+sentinel://:${PW}@h1,h2/jobs/0?sentinel_password=${PW}'}\n"
    url = loaded(text, {"PW": "p/s@&"}, tmp_path).stores["default"].url
    assert url == "redis+sentinel://:p%2Fs%40%26@h1,h2/jobs/0?sentinel_password=p%2Fs%40%26"
    assert mask_secrets(url) == "redis+sentinel://:***@h1,h2/jobs/0?sentinel_password=***"
