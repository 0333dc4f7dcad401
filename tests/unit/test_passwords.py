"""Passwords that change: when a source is asked, and what its failures say."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from jobmaster.model.errors import ConfigError, InputError, JobMasterError, Unavailable
from jobmaster.passwords import NO_FUNCTIONS, PasswordFunctions, RotatingPassword, checked, of_command


class Refused(Exception):
    pass


class Server:
    """Accepts one password."""

    def __init__(self, password: str) -> None:
        self.password = password
        self.tries: list[str] = []

    async def connect(self, password: str) -> str:
        self.tries.append(password)
        if password != self.password:
            raise Refused(password)
        return "connected"


async def test_a_password_is_used_again_for_its_lifetime_and_fetched_anew_when_it_is_refused() -> None:
    words = iter(["old", "new"])
    server = Server("old")
    password = RotatingPassword(lambda: next(words), 3600)
    for _ in range(3):
        assert await password.use(server.connect, Refused) == "connected"
    server.password = "new"
    assert await password.use(server.connect, Refused) == "connected"
    assert server.tries == ["old", "old", "old", "old", "new"]


async def test_without_a_lifetime_each_connection_asks_and_a_fresh_password_that_is_refused_is_an_error() -> None:
    asked = []

    async def fetch() -> str:
        asked.append(1)
        return "wrong"

    password = RotatingPassword(fetch, 0)
    for _ in range(2):
        with pytest.raises(Refused):
            await password.use(Server("right").connect, Refused)
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("program", "error", "said"),
    [
        ("import sys; sys.exit('password=hunter2 expired')", Unavailable, "code 1: password=*** expired"),
        ("print()", Unavailable, "printed no password"),
        (None, ConfigError, "cannot be run: No such file"),
    ],
)
async def test_a_command_that_gives_no_password_is_one_sentence_without_a_secret(
    program: str | None, error: type[JobMasterError], said: str
) -> None:
    command = f'{sys.executable} -c "{program}"' if program else "/no/such/program --flag"
    with pytest.raises(error) as caught:
        await of_command(command)()  # type: ignore[misc]
    assert said in caught.value.message
    assert "hunter2" not in str(caught.value)


async def test_the_first_line_of_a_command_is_the_password(tmp_path: Path) -> None:
    (tmp_path / "a file").write_text("s3 cret\nmore\n")
    assert await of_command(f"cat '{tmp_path}/a file'")() == "s3 cret"  # type: ignore[misc]


def test_a_command_that_is_no_command_is_refused_when_it_is_read() -> None:
    for command in ("", "cat 'open"):
        with pytest.raises(ConfigError):
            of_command(command)


def _text() -> object:
    return b"bytes"


async def test_what_is_no_password_or_no_function_is_refused() -> None:
    functions: list[Callable[[], object]] = [_text, lambda: ""]
    for function in functions:
        with pytest.raises(InputError):
            await RotatingPassword(function, 0).use(Server("x").connect, Refused)  # type: ignore[arg-type]
    for given in ("secret", PasswordFunctions(master="secret"), PasswordFunctions(stores={"a": 1})):  # type: ignore[arg-type,dict-item]
        with pytest.raises(InputError):
            checked(given)
    assert checked(NO_FUNCTIONS) is NO_FUNCTIONS
