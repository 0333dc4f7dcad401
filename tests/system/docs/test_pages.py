"""Every page that teaches by doing works as it is written: its files, its commands and their output, its snippets."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.page_runner import REPOSITORY, PageFailed, PageRunner

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

PAGES = [REPOSITORY / "README.md", REPOSITORY / "docs/tutorial.md", *sorted((REPOSITORY / "docs/how-to").glob("*.md"))]


@pytest.mark.parametrize("page", [pytest.param(page, id=page.stem) for page in PAGES])
def test_the_page_works_as_it_is_written(page: Path, tmp_path: Path) -> None:
    runner = PageRunner(page, tmp_path)
    runner.run()
    assert runner.done


@pytest.mark.parametrize(
    "block",
    [
        "```python\nassert 1 == 2\n```\n",
        "```console\n$ echo one\ntwo\n```\n",
        "```console\n$ false\n```\n",
        "```console\n$ true   # fails\n```\n",
    ],
)
def test_a_page_with_a_mistake_is_found(block: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(block)
    with pytest.raises(PageFailed, match=r"page\.md"):
        PageRunner(page, tmp_path).run()
