"""The rules that code and tests cite by letter are headings of the protocol page, and the tests named there exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
RULES = dict(re.findall(r"^### ([A-Z])\. (.*?)(?=^###? |\Z)", PAGE, re.MULTILINE | re.DOTALL))
_CITED = re.compile(r"\brule ([A-Z])\b")
_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def test_every_rule_that_is_cited_has_a_heading() -> None:
    cited = {
        letter
        for folder in ("jobmaster", "agents", "tests")
        for path in (ROOT / folder).rglob("*.*")
        if path.suffix in (".py", ".sql", ".lua")
        for letter in _CITED.findall(path.read_text(encoding="utf-8"))
    }
    assert cited
    assert cited <= RULES.keys()


def test_every_rule_names_tests_that_exist() -> None:
    assert sorted(RULES) == list("ABCDEFGHI")
    for letter, text in RULES.items():
        named = _TEST.findall(text)
        assert named, f"rule {letter} names no test"
        for path, name in named:
            assert re.search(rf"^(async )?def {name}\(", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE), name
