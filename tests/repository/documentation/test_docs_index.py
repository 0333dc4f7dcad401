"""The index leads to every page, and what is made from it is current. `make docs` finds dead links of the site itself."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.repository.docs_index import DOCS, LLMS, Link, Section, llms_text, sections, with_addresses

INDEX = (DOCS / "index.md").read_text(encoding="utf-8")


def test_the_index_lists_every_page_once() -> None:
    listed = Counter(link.page for section in sections(INDEX) for link in section.links)
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")} - {"index.md"}
    assert set(listed) == pages
    assert [page for page, times in listed.items() if times > 1] == []


def test_the_index_has_the_four_kinds_of_pages() -> None:
    kinds = {section.title.split()[0] for section in sections(INDEX)}
    assert kinds == {"Tutorial", "How", "Reference", "Explanation"}


def test_llms_txt_is_current() -> None:
    assert LLMS.read_text(encoding="utf-8") == llms_text(INDEX), "run: python -m tests.repository.docs_index"


def test_an_item_without_its_form_is_an_error() -> None:
    assert sections("# A\n\n## B\n\n- [c](d.md): e\n") == [Section("B", (Link("c", "d.md", "e"),))]
    with pytest.raises(ValueError, match=r"docs/index\.md, B: write"):
        sections("## B\n\n- [c](d.md)\n")


def test_links_out_of_the_folder_are_addresses() -> None:
    text = "[a](../SECURITY.md#b) [c](../handlers.md) [d](e.md)"
    assert with_addresses(text, "security.md", "https://x") == (
        "[a](https://x/blob/main/SECURITY.md#b) [c](https://x/blob/main/handlers.md) [d](e.md)"
    )
    assert with_addresses(text, "how-to/debug.md", "https://x").endswith("[c](../handlers.md) [d](e.md)")
