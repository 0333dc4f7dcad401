"""The reference of the Python API has every public name and is current."""

from __future__ import annotations

import re

import pytest

from tests.repository.api_reference import FIXTURES, MODULES, PAGE, public_names, reference


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference(), "run: python -m tests.repository.api_reference"


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_has_an_entry_with_a_text(module: str) -> None:
    page = PAGE.read_text(encoding="utf-8")
    part = page.split(f"\n## {module}\n")[1].split("\n## ")[0]
    for name in public_names(module):
        found = re.search(rf"^### {re.escape(name)}\n(.*?)(?=^### |\Z)", part, re.MULTILINE | re.DOTALL)
        assert found, f"{module}.{name} has no entry"
        body = re.sub(r"```text.*?```", "", found[1], flags=re.DOTALL)
        assert re.search(r"[a-z]{3}.* [a-z]", body), f"{module}.{name} has no docstring"


def test_the_fixtures_of_the_plugin_have_entries() -> None:
    part = PAGE.read_text(encoding="utf-8").split(f"\n## {FIXTURES}\n")[1]
    names = re.findall(r"^### (\w+)\n\nType: `\w+`\n\n[A-Z`]", part, re.MULTILINE)
    assert names == ["jobmaster_handlers", "jobmaster_settings", "jobs", "inline_jobs", "jobmaster_cluster"]


def test_methods_for_other_modules_of_the_package_are_not_listed() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert not re.search(r"(submit|prepare|accept)_within|route_of|hint_after_commit|disconnect", page)
