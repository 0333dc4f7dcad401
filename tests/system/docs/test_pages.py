"""Every page that teaches by doing works as it is written: its files, its commands and their output, its snippets."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.pages.page_runner import REPOSITORY, PageFailed, PageRunner

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

PRELUDES = Path(__file__).with_name("preludes")
EXPLAINING = {
    "docs/breakers.md": "operation/breakers",
    "docs/batches.md": "application/batches",
    "docs/bulk.md": "application/bulk",
    "docs/delivery.md": "application/delivery",
    "docs/events.md": "application/events",
    "docs/fastapi.md": "application/fastapi",
    "docs/handlers.md": "application/handlers",
    "docs/jobs.md": "application/jobs",
    "docs/limits.md": "operation/limits",
    "docs/locks.md": "application/locks",
    "docs/operations.md": "operation/operations",
    "docs/pipeline.md": "operation/pipeline",
    "docs/pipeline-jobs.md": "operation/pipeline_jobs",
    "docs/pydantic.md": "application/pydantic",
    "docs/schedules.md": "application/schedules",
    "docs/security.md": "operation/security",
    "docs/signals.md": "application/signals",
    "docs/tenants.md": "operation/tenants",
    "docs/traces.md": "operation/traces",
    "docs/transactions.md": "application/transactions",
    "docs/workflows.md": "application/workflows",
    "docs/uniqueness.md": "application/uniqueness",
}
"""Pages that explain with fragments -> prelude with what the fragments need."""
ELSEWHERE = {"docs/django.md": "tests/integration/django/test_page.py"}
"""Pages whose blocks are a project of their own -> the test that makes it."""
NEEDS_SPARK = ("docs/pipeline.md",)
PAGES = [
    *(REPOSITORY / page for page in ("README.md", "docs/tutorial.md", "docs/http-api.md")),
    *sorted((REPOSITORY / "docs/how-to").glob("*.md")),
]


@pytest.mark.parametrize("page", [pytest.param(page, id=page.stem) for page in PAGES])
def test_the_page_works_as_it_is_written(page: Path, tmp_path: Path) -> None:
    runner = PageRunner(page, tmp_path)
    runner.run()
    assert runner.done


@pytest.mark.spark
@pytest.mark.parametrize("page", NEEDS_SPARK)
def test_the_snippets_of_the_page_run(page: str, tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="the extra `pipeline` is not installed")
    PageRunner(REPOSITORY / page, tmp_path).run_with(PRELUDES / f"{EXPLAINING[page]}.py")


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
