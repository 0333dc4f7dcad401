"""What SECURITY.md says of the tree as a whole: imports that the product does without, pinned hashes, and the page itself."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from jobmaster.master.driver.statements import names, statement

ROOT = Path(__file__).parents[3]
PRODUCT = [*sorted((ROOT / "jobmaster").rglob("*.py")), *sorted((ROOT / "agents").rglob("*.py"))]
BUILDS_OBJECTS = {
    "pickle",
    "marshal",
    "shelve",
    "dill",
    "cloudpickle",
    "jsonpickle",
    "xmlrpc",
    "zlib",
    "gzip",
    "bz2",
    "lzma",
    "code",
}
SENDS_REQUESTS = {"requests", "httpx", "aiohttp", "smtplib", "ftplib", "urllib.request", "http.client"}
REQUESTS_OF_OPERATORS = {
    "jobmaster/cli/commands/terminal/health.py": "one GET of a probe, at an address of the command line or the configuration",
}
IMPORTS_BY_NAME = {
    "jobmaster/__init__.py": "public names of a fixed table",
    "jobmaster/cli/main.py": "commands of a fixed table",
    "jobmaster/cli/commands/pipeline/pipeline.py": "commands of a fixed table",
    "jobmaster/handlers/loading.py": "modules that the operator names in the configuration",
    "jobmaster/testing/__init__.py": "public names of a fixed table",
    "jobmaster/pipeline/jobs/driver_program.py": "the module of a declared handler, which its agent has imported",
    "jobmaster/django": "names of the settings of a Django project",
}
_IMPORT = re.compile(r"^[ ]*(?:import|from) ([\w.]+)", re.MULTILINE)
_EVALUATES = re.compile(r"(?<![\w.])(?:eval|exec)\(|yaml\.(?:unsafe_|full_)?load\b|Template\(|from_string\(")
_BY_NAME = re.compile(r"\b(?:import_module|__import__)\(")
_REFERENCE = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")


@cache
def _text(path: Path) -> str:
    return path.read_text()


def _imported(path: Path) -> list[str]:
    """Modules that a file imports, by its lines: trees of the whole product take seconds."""
    return _IMPORT.findall(_text(path))


def _place(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_no_module_of_the_product_can_unpickle_or_evaluate_data() -> None:
    found = [
        f"{_place(path)}: {name}"
        for path in PRODUCT
        for name in _imported(path)
        if name.split(".")[0] in BUILDS_OBJECTS
    ]
    found += [_place(path) for path in PRODUCT if _EVALUATES.search(_text(path))]
    assert found == []


def test_no_module_of_the_product_sends_requests_to_other_services() -> None:
    found = [
        f"{_place(path)}: {name}"
        for path in PRODUCT
        for name in _imported(path)
        if (name in SENDS_REQUESTS or name.split(".")[0] in SENDS_REQUESTS)
        and _place(path) not in REQUESTS_OF_OPERATORS
    ]
    assert found == []


def test_a_module_is_imported_by_name_in_listed_places_only() -> None:
    found = {_place(path) for path in PRODUCT if _BY_NAME.search(_text(path))}
    assert [place for place in sorted(found) if not place.startswith(tuple(IMPORTS_BY_NAME))] == []


def test_every_pinned_dependency_has_a_hash() -> None:
    for path in (ROOT / "requirements").glob("*.txt"):
        text = path.read_text().replace("\\\n", " ")
        pins = [line for line in text.splitlines() if re.match(r"[A-Za-z0-9]", line)]
        assert pins, path
        assert [line for line in pins if not re.match(r"[\w.\[\]-]+==\S+ .*--hash=sha256:", line)] == []
    assert "--require-hashes" in (ROOT / "Makefile").read_text()


def test_the_product_has_no_hook_for_faults() -> None:
    found = [
        _place(path) for path in PRODUCT if re.search(r"crash_point|fault_inject|chaos", _text(path), re.IGNORECASE)
    ]
    assert found == []


def test_every_statement_of_operators_leaves_a_line() -> None:
    """Folders of acts of operators: each statement that writes notes who did it."""
    acts = (
        "pauses/pause",
        "pauses/resume",
        "requests/cancel",
        "changes/change_held",
        "locks/revoke",
        "bulk/start",
        "bulk/cancel",
    )
    for name in acts:
        assert name in names()
        assert "operator_log" in statement(name).body or "actor" in statement(name).body, name


def test_every_item_has_a_row_whose_tests_exist() -> None:
    for number in range(1, 47):
        _check_row(number)


def _check_row(number: int) -> None:
    rows = re.findall(rf"^\| {number} \| (.+) \| (.+) \| (.*) \|$", _text(ROOT / "SECURITY.md"), re.MULTILINE)
    assert len(rows) == 1
    _, state, tests = rows[0]
    assert re.match(r"done|in part|not needed|not done|reviewed", state)
    assert tests.strip() or state.startswith("not done:"), "a test, or the reason why there is none"
    for path, name in _REFERENCE.findall(tests):
        text = _text(ROOT / path)
        assert not name or f"def {name}(" in text, f"{path}::{name}"
