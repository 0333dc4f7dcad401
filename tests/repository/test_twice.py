"""Only what failed is run once more; a test that then passes is a failure all the same, unless it is in quarantine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import twice
from tests.support.patience import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
FLAKY = """
from pathlib import Path
import pytest

def once():
    first = not Path("seen").exists()
    Path("seen").touch()
    return first

def test_good(): pass

def test_flaky(): assert not once()
"""
CASES = {
    "good": ("def test(): pass", 0, ""),
    "fails once": (FLAKY, 1, "failed at first, passed alone, not in quarantine.toml: test_sample.py::test_flaky"),
    "fails always": ("def test(): assert False", 1, "failed twice: test_sample.py::test"),
    "skipped the second time": (
        FLAKY.replace("assert not once()", "assert not once() or pytest.skip('no answer')").replace(
            "assert not once() or", "assert False if once() else"
        ),
        1,
        "failed twice: test_sample.py::test_flaky",
    ),
    "cannot be collected": ("def test(): pass\nraise ValueError", 2, "none is run again"),
    "interrupted": ("def test_a(): assert False\ndef test_b(): raise KeyboardInterrupt", 2, "none is run again"),
    "nothing to run": ("", 5, "none is run again"),
    "too many": ("def test_%d(): assert False\n" * (twice.FAILED_MAX + 1), 1, "11 tests failed"),
    "hangs": ("import os\ndef test(): os._exit(1)", 1, "none is run again"),
    "a process is lost": (
        FLAKY.replace("assert not once()", "import os; once() and os.abort()"),
        3,
        "none is run again",
    ),
}


PLAIN = {"PYTEST_ADDOPTS": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
"""A pytest without the plugins of this environment: it starts in a third of the time."""
KINDS = ("fails always", "interrupted", "hangs", "a process is lost")
"""Cases that end in different ways; the other ones are further cases of these."""


def _marks(case: str) -> list[pytest.MarkDecorator]:
    if case == "fails once":
        return []
    return [pytest.mark.slow] if case in KINDS else [pytest.mark.slow, pytest.mark.long]


@pytest.mark.parametrize("case", [pytest.param(case, marks=_marks(case)) for case in CASES])
def test_only_a_failure_of_single_tests_is_given_a_second_try(case: str, tmp_path: Path) -> None:
    text, code, said = CASES[case]
    if "%d" in text:
        text = text % tuple(range(text.count("%d")))
    (tmp_path / "test_sample.py").write_text(text)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    processes = ["--first", "-p xdist -n 2"] if case == "a process is lost" else []
    done = subprocess.run(
        [sys.executable, "-m", "tests.twice", *processes],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), **PLAIN},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert (done.returncode, said in done.stdout) == (code, True), done.stdout + done.stderr


ENTRY = '[[test]]\nname = "tests/test_a.py::test_b"\nreason = "a race"\nsince = 2026-01-31\n'


@pytest.mark.parametrize(
    ("listed", "code"), [("test_sample.py::test_flaky", 0), ("test_sample.py::test_good", 1), ("test_sample.py", 1)]
)
@pytest.mark.slow
def test_a_test_in_quarantine_may_pass_at_its_second_try(
    listed: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parameters = (
        "import pytest\n@pytest.mark.parametrize('n', [1, 2])\ndef test_flaky(n): assert n == 2 or not once()\n"
    )
    (tmp_path / "test_sample.py").write_text(FLAKY.replace("def test_flaky(): assert not once()", parameters))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name, value in PLAIN.items():
        monkeypatch.setenv(name, value)
    assert twice.run([], [], {listed}) == code


def test_an_entry_of_the_quarantine_has_a_name_a_reason_and_a_day() -> None:
    assert twice.quarantined("test = []") == []
    assert twice.quarantined(ENTRY) == ["tests/test_a.py::test_b"]
    for bad in (ENTRY.replace("a race", ""), ENTRY.replace("since", "day"), ENTRY.replace("2026-01-31", '"now"')):
        with pytest.raises(ValueError, match="an entry is"):
            twice.quarantined(bad)
    with pytest.raises(ValueError, match="11 tests"):
        twice.quarantined(ENTRY * (twice.QUARANTINE_MAX + 1))


def test_the_quarantine_names_tests_that_exist() -> None:
    for name in twice.quarantined(twice.QUARANTINE.read_text(encoding="utf-8")):
        path, _, function = name.partition("[")[0].partition("::")
        assert f"def {function.rpartition('::')[2]}(" in (ROOT / path).read_text(encoding="utf-8"), name
