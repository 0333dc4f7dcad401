"""What people see in a terminal, of a running cluster: the formats of every command that shows something."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import socket
import struct
import subprocess
import sys
import termios
import time
from itertools import cycle

import pytest
import yaml

from tests.support.patience import PATIENCE_SECONDS, patient
from tests.support.waiting import wait_until
from tests.system.cli.conftest import Result, Terminal
from tests.system.cli.test_face import ALL

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

LISTS = sorted(" ".join(words) for words in ALL if words[-1] == "list")
SHOWS = {
    "agent show": ("default",), "bulk cancel": ("--state", "held", "--dry-run"), "cluster mode": (), "config show": (),
    "config validate": (), "db status": (), "dev status": (), "doctor": (), "events": ("--limit", "1"), "job count": (),
    "job explain": ("{job}",), "job failures": (), "job logs": ("{job}",), "job show": ("{job}",),
    "job timeline": ("{job}",), "job wait": ("{job}",), "pauses": (), "stat": ("--count", "1"), "status": (),
    "store check": (), "tenants": (), "version": (),
}  # fmt: skip
"""Further commands that need nothing but a cluster with a job and an agent."""
STREAMS = ("events", "job logs", "stat")


def test_every_command_that_shows_something_has_every_format(dev: Terminal) -> None:
    (job,) = dev.call("job", "submit", "add", "one=1", "other=2", "--within", "10m", "-o", "name").out.splitlines()
    formats = cycle(("yaml", "name", "jsonl", "wide"))  # a function prints all of them: one by turns is enough here
    for name, words in [*((name, ()) for name in LISTS), *SHOWS.items()]:
        given = [*name.split(), *(word.format(job=job) for word in words)]
        checked(name, next(formats), dev, given)


def checked(name: str, output: str, dev: Terminal, words: list[str]) -> None:
    as_json, result = dev.call(*words, "-o", "json"), dev.call(*words, "-o", output)
    assert as_json.code == result.code == 0, (name, output, as_json, result)
    whole = name in STREAMS
    expected = [json.loads(line) for line in as_json.out.splitlines()] if whole else as_json.json
    items = expected if isinstance(expected, list) else [expected]
    match output:
        case "yaml":
            found = yaml.safe_load(result.out)
            assert keys(found or []) == keys(expected), (name, result)
        case "jsonl":
            lines = [json.loads(line) for line in result.out.splitlines()]
            assert keys(lines) == keys(items) or name == "config show", (name, result)
        case "name":
            assert named(name, result, len(items)), (name, result)
        case _:
            assert result.out or result.err or not items, (name, result)


def keys(found: object) -> list[object]:
    """The fields of one item or of several: figures change between two calls."""
    return [sorted(item) for item in (found if isinstance(found, list) else [found]) if isinstance(item, dict)]


def named(name: str, result: Result, items: int) -> bool:
    lines = result.out.splitlines()
    if name in ("doctor", "signal list", "config show"):
        return True
    return len(lines) <= items and all(lines) and "{" not in result.out


PATIENT = """
from jobmaster.cli import completion, main
completion.BUDGET_SECONDS = completion._END_SECONDS = 100.0
main.main()
"""
"""The command line with more time for its completions than a busy machine takes."""


def completed(dev: Terminal, *words: str, program: str = "from jobmaster.cli import main\nmain.main()") -> list[str]:
    """What bash is given for the last of the words."""
    line = {"COMP_WORDS": " ".join(("jobmaster", *words)), "COMP_CWORD": str(len(words))}
    env = {**dev.environment, **line, "_JOBMASTER_COMPLETE": "bash_complete"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=env, cwd=dev.folder, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stderr == ""
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


def test_a_shell_completes_names_that_the_master_knows(dev: Terminal) -> None:
    assert completed(dev, "sche", program=PATIENT) == ["schedule"]
    assert "add" in completed(dev, "job", "submit", "a", program=PATIENT)
    assert completed(dev, "job", "list", "--lane", "d", program=PATIENT) == ["default"]
    assert completed(dev, "agent", "show", "", program=PATIENT) == ["default"]
    assert "add" in completed(dev, "pause", "handler", "ad", program=PATIENT)


def test_a_completion_without_a_master_is_silent_and_in_time(dev: Terminal) -> None:
    began = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it accepts and says nothing
        dsn = f"postgresql://x@127.0.0.1:{silent.getsockname()[1]}/x"
        assert completed(dev, "--set", f"master.dsn={dsn}", "agent", "show", "") == []
    assert time.monotonic() - began < patient(5)
    assert completed(dev, "--set", "master.dsn=nonsense", "agent", "show", "") == []


def test_stat_ends_quietly_when_its_reader_has_gone(dev: Terminal) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "jobmaster.cli.main", "stat", "--every", "0.1"],
        env=dev.environment, cwd=dev.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline().split()[:3] == ["TIME", "(UTC)", "SUBMITTED/S"]
    assert process.stdout.readline().split()[-1] == "1", "one agent"
    process.stdout.close()
    assert (process.wait(PATIENCE_SECONDS), process.stderr.read()) == (1, "")
    process.stderr.close()


def test_top_is_live_sorts_and_leaves_the_terminal_as_it_was(dev: Terminal) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 160, 0, 0))
    before = termios.tcgetattr(theirs)
    env = {name: value for name, value in dev.environment.items() if name not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(
        [sys.executable, "-m", "jobmaster.cli.main", "top", "--every", "0.3"],
        env=env, cwd=dev.folder, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
    )  # fmt: skip
    shown = ""

    def shows(text: str) -> bool:
        nonlocal shown
        if select.select([ours], [], [], 0)[0]:
            shown += os.read(ours, 65_536).decode(errors="replace")
        return text in shown

    try:
        wait_until(lambda: shows("CLUSTER default"), 20, "the first screen")
        wait_until(lambda: shows("AGENTS by RUNNING"), 20, "the agents")
        dev.call("job", "submit", "add", "one=1", "other=2", "--after", "1h")
        wait_until(lambda: shows("held 1"), 20, "a later screen with the job")
        os.write(ours, b"\ts")
        wait_until(lambda: shows("AGENTS by ENDED/S"), 20, "the other order")
        os.write(ours, b"q")
        wait_until(lambda: shows("\x1b[?1049l"), 20, "the end of the screen")
        assert process.wait(PATIENCE_SECONDS) == 0
        assert termios.tcgetattr(theirs) == before
        assert max(len(line) for line in shown.split("\r\n")) < 400
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(ours)
        os.close(theirs)


def test_top_without_a_terminal_names_the_command_for_pipes(dev: Terminal) -> None:
    refused = dev.call("top")
    assert (refused.code, "jobmaster stat" in refused.err) == (2, True)
