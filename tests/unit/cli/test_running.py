"""Ctrl-C ends a command as interrupted, whatever its connections raise while they are closed."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from jobmaster.cli.failures import guarded
from jobmaster.cli.invocation import Invocation
from jobmaster.cli.running import run_async


async def interrupted_with(error: BaseException) -> None:
    """A command that gets SIGINT while it waits; its clean-up raises the error."""
    os.kill(os.getpid(), signal.SIGINT)
    try:
        await asyncio.Event().wait()
    finally:
        raise error


def test_an_error_of_the_clean_up_does_not_hide_the_interrupt() -> None:
    with pytest.raises(KeyboardInterrupt):
        run_async(interrupted_with(BrokenPipeError("the server's end of the connection is closed")))


def test_a_time_limit_is_no_interrupt() -> None:
    async def late() -> None:
        async with asyncio.timeout(0):
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        run_async(late())


def test_a_connection_that_broke_is_an_error_with_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    """Only a standard output without a reader ends a command without a message."""

    def command() -> int:
        raise BrokenPipeError(32, "Broken pipe")

    assert guarded(command, Invocation(), []) == 70
    assert "BrokenPipeError" in capsys.readouterr().err
