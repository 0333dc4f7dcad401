"""Every page that teaches by doing works as it is written: its files, its commands and their output, its snippets."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.page_runner import REPOSITORY, PageFailed, PageRunner

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

PRELUDES = Path(__file__).with_name("preludes")
EXPLAINING = {
    "docs/breakers.md": "breakers",
    "docs/batches.md": "batches",
    "docs/bulk.md": "bulk",
    "docs/delivery.md": "delivery",
    "docs/events.md": "events",
    "docs/fastapi.md": "fastapi",
    "docs/handlers.md": "handlers",
    "docs/jobs.md": "jobs",
    "docs/limits.md": "limits",
    "docs/locks.md": "locks",
    "docs/operations.md": "operations",
    "docs/pipeline.md": "pipeline",
    "docs/pipeline-jobs.md": "pipeline_jobs",
    "docs/pydantic.md": "pydantic",
    "docs/schedules.md": "schedules",
    "docs/security.md": "security",
    "docs/signals.md": "signals",
    "docs/tenants.md": "tenants",
    "docs/traces.md": "traces",
    "docs/transactions.md": "transactions",
    "docs/workflows.md": "workflows",
    "docs/uniqueness.md": "uniqueness",
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
