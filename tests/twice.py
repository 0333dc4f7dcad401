"""``python -m tests.twice [--first WORDS] ARGUMENTS...``: pytest, and once more, alone, for the few tests that failed.

Tests of real processes may fail on a busy machine. What fails twice is a failure, and so is whatever is no failure of single
tests: a run that was interrupted, that could not collect or that lost a process tells nothing of the tests it never came to.
Both results stand in the output. Nothing is remembered from one call to the next.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

FAILED_MAX = 10
"""More failures than this are not the machine's fault."""
AGAIN = "PYTEST_RUN_AGAIN"
"""Variable that is set for the second run."""


def run(first: Sequence[str], arguments: Sequence[str]) -> int:
    """Exit code of both runs together: 0 when each test has passed (or was skipped) at its first or its second try.

    Args:
        first: further arguments of the first run, such as how many processes share it.
    """
    with tempfile.TemporaryDirectory(prefix="jobmaster-twice-") as folder:
        code = _pytest(folder, [*first, *arguments])
        failed = failed_in(Path(folder))
    # A test that hangs ends its process with the code of a failed one, too; but then no test is named.
    if code != pytest.ExitCode.TESTS_FAILED or not failed:
        if code:
            _say(f"pytest ended with {code}: that is no failure of single tests, so none is run again")
        return code
    if len(failed) > FAILED_MAX:
        _say(f"{len(failed)} tests failed; up to {FAILED_MAX} would be run again")
        return code
    _say(f"{len(failed)} failed, and run again, alone: {', '.join(failed)}")
    with tempfile.TemporaryDirectory(prefix="jobmaster-twice-") as folder:
        again = _pytest(folder, ["-rA", *failed], {AGAIN: "1"})
        still = failed_in(Path(folder))
    if again:
        _say(f"failed twice: {', '.join(still) or 'the second run itself'}")
    else:
        _say(f"failed at first, passed alone: {', '.join(failed)}")
    return again


def failed_in(cache: Path) -> list[str]:
    """Names of the tests that a run with this cache directory left as failed."""
    path = cache / "v" / "cache" / "lastfailed"
    return sorted(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else []


def _pytest(cache: str, arguments: Sequence[str], variables: Mapping[str, str] | None = None) -> int:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.twice", "-o", f"cache_dir={cache}", *arguments]
    return subprocess.run(command, env={**os.environ, **(variables or {})}, check=False).returncode


def _say(text: str) -> None:
    sys.stdout.write(f"\n{text}\n")
    sys.stdout.flush()


# ---------------------------------------------------------------- inside pytest

_LOST = pytest.StashKey[bool]()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """A process of several has died, by a signal or because a test hung."""
    if error is not None:
        node.config.stash[_LOST] = True


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Without its process a test is only said to have failed."""
    if session.config.stash.get(_LOST, False):
        session.exitstatus = pytest.ExitCode.INTERNAL_ERROR


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What is run again must pass: to be skipped is no answer."""
    report = yield
    if report.skipped and AGAIN in os.environ:
        report.outcome = "failed"
    return report


if __name__ == "__main__":
    words = sys.argv[1:]
    extra = shlex.split(words[1]) if words[:1] == ["--first"] else []
    sys.exit(run(extra, words[2:] if extra else words))
