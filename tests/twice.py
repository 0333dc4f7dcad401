"""``python -m tests.twice [--first WORDS] ARGUMENTS...``: pytest, and once more, alone, for the few tests that failed.

The second run tells a test that fails from one that fails now and then; both results stand in the output. A test that
failed at first and passed alone is named, and the run fails unless ``tests/quarantine.toml`` lists the test. A run that was
interrupted, that could not collect or that lost a process has no list of failed tests, so it fails without a second run.
Nothing is remembered from one call to the next.
"""

from __future__ import annotations

import datetime
import json
import os
import shlex
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Collection, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

FAILED_MAX = 10
"""With more failures than this nothing is run again."""
AGAIN = "PYTEST_RUN_AGAIN"
"""Variable that is set for the second run."""
QUARANTINE = Path(__file__).parent / "quarantine.toml"
QUARANTINE_MAX = 10


def run(first: Sequence[str], arguments: Sequence[str], quarantine: Collection[str]) -> int:
    """Exit code of both runs together: 0 when each test has passed or was skipped.

    Args:
        first: further arguments of the first run, such as how many processes share it.
        quarantine: names of the tests that need to pass only at the second try.
    """
    with tempfile.TemporaryDirectory(prefix="jobmaster-twice-") as folder:
        code = _pytest(folder, [*first, *arguments])
        failed = failed_in(Path(folder))
    # A test that hangs ends its process with the code of a failed one, too; but then no test is named.
    if code != pytest.ExitCode.TESTS_FAILED or not failed:
        if code:
            _print(f"pytest ended with {code}: that is no failure of single tests, so none is run again")
        return code
    if len(failed) > FAILED_MAX:
        _print(f"{len(failed)} tests failed; up to {FAILED_MAX} would be run again")
        return code
    _print(f"{len(failed)} failed, and run again, alone: {', '.join(failed)}")
    with tempfile.TemporaryDirectory(prefix="jobmaster-twice-") as folder:
        again = _pytest(folder, ["-rA", *failed], {AGAIN: "1"})
        still = failed_in(Path(folder))
    if again:
        _print(f"failed twice: {', '.join(still) or 'the second run itself'}")
        return again
    known = [name for name in failed if name in quarantine or name.partition("[")[0] in quarantine]
    unknown = [name for name in failed if name not in known]
    if known:
        _print(f"in quarantine, failed at first, passed alone: {', '.join(known)}")
    if unknown:
        _print(f"failed at first, passed alone, not in {QUARANTINE.name}: {', '.join(unknown)}")
    return code if unknown else 0


def quarantined(text: str) -> list[str]:
    """Names of the tests in quarantine.

    Raises:
        ValueError: an entry has no name, reason or day, or there are more than ``QUARANTINE_MAX``.
    """
    entries = tomllib.loads(text)["test"]
    for entry in entries:
        if (
            set(entry) != {"name", "reason", "since"}
            or not entry["reason"]
            or type(entry["since"]) is not datetime.date
        ):
            raise ValueError(f"an entry is a name, a reason and since when (a day): {entry}")
    if len(entries) > QUARANTINE_MAX:
        raise ValueError(f"{len(entries)} tests in quarantine, {QUARANTINE_MAX} are allowed")
    return [entry["name"] for entry in entries]


def failed_in(cache: Path) -> list[str]:
    """Names of the tests that a run with this cache directory left as failed."""
    path = cache / "v" / "cache" / "lastfailed"
    return sorted(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else []


def _pytest(cache: str, arguments: Sequence[str], variables: Mapping[str, str] | None = None) -> int:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.twice", "-o", f"cache_dir={cache}", *arguments]
    return subprocess.run(command, env={**os.environ, **(variables or {})}, check=False).returncode


def _print(text: str) -> None:
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
    """A test whose process died is reported as failed; nothing is known of it."""
    if session.config.stash.get(_LOST, False):
        session.exitstatus = pytest.ExitCode.INTERNAL_ERROR


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that is run again must pass: a skip counts as a failure."""
    report = yield
    if report.skipped and AGAIN in os.environ:
        report.outcome = "failed"
    return report


if __name__ == "__main__":
    words = sys.argv[1:]
    extra = shlex.split(words[1]) if words[:1] == ["--first"] else []
    sys.exit(run(extra, words[2:] if extra else words, quarantined(QUARANTINE.read_text(encoding="utf-8"))))
