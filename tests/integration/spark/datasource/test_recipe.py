"""The recipe about a backfill, in the Spark session of the tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.spark.datasource.conftest import PublishedCluster
from tests.support.pages.page_runner import REPOSITORY, all_blocks

pytestmark = [pytest.mark.slow, pytest.mark.spark]

ADDRESS = '.option("dsnEnv", "MASTER_DSN")'
BILL = (
    '{"name":"bill.make","schema":{"type":"object","properties":{"order":{"type":"integer"},'
    '"customer":{"type":"string"}},"required":["order","customer"],"additionalProperties":false}}'
)


def test_a_backfill_that_is_repeated_makes_each_job_once(published: PublishedCluster, tmp_path: Path) -> None:
    text = (REPOSITORY / "docs" / "recipes.md").read_text(encoding="utf-8")
    (snippet,) = [block.text for block in all_blocks(text) if "spark.read.parquet" in block.text]
    assert ADDRESS in snippet
    published.sql(
        lambda connection: connection.execute(
            "INSERT INTO handler VALUES ('bill.make', $1, 'y', gen_random_uuid())", BILL
        )
    )
    orders = published.spark.range(40).selectExpr(
        "id AS order", "concat('customer ', id % 7) AS customer", "2025 + id % 2 AS year"
    )
    orders.write.parquet(str(tmp_path / "orders"))
    # Spark finds relative paths from the folder in which its Java was started.
    for name in ("orders", "rejects"):
        assert f'"{name}")' in snippet
        snippet = snippet.replace(f'"{name}")', f'"{tmp_path / name}")')
    program = compile(snippet.replace(ADDRESS, ".options(**address)"), "recipes.md", "exec")
    for _ in range(2):
        exec(program, {"spark": published.spark, "address": published.options})  # noqa: S102 (of a page)
    assert published.value("SELECT count(*) FROM job WHERE handler = 'bill.make'") == 20
