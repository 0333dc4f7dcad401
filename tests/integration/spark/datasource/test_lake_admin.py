"""The lake is listed, and swept of what nothing names and nothing may still need."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jobmaster.model.errors import InputError
from jobmaster.pipeline.context import PipelineContext, PipelineOptions
from jobmaster.pipeline.jobs.driver_program import STEPS
from jobmaster.pipeline.steps.audit import LAST
from jobmaster.pipeline.steps.lake_admin import list_lake, vacuum
from tests.integration.spark.datasource.conftest import published_cluster

pytestmark = pytest.mark.slow


def test_only_old_files_of_unnamed_runs_go(migrated_dsn: str, cluster_name: str, tmp_path: Path) -> None:
    published = published_cluster(migrated_dsn, cluster_name, tmp_path / "lake")
    lake = tmp_path / "lake"
    files = {
        "jobs/v1/run=dead/day=2030-01-01/a.parquet": 10,
        "jobs/v1/run=young/day=2030-01-01/a.parquet": 0,
        "rollup/figures/v1/run=named/day=2030-01-01/a.parquet": 10,
        "rollup/figures/v1/run=dead/day=2030-01-01/a.parquet": 10,
        "rejects/.writing-dead/part.parquet": 10,
        "rejects/.writing-young/_begun": 10,
        "rejects/.writing-young/part.parquet": 10,
        "violations/v1/run=dead/part.parquet": 10,
        "violations/v1/run=last/part.parquet": 10,
        "rejects/part.parquet": 10,
        "rejects/part-old-dead.parquet": 100,
        "stream/jobs/v1/day=2030-01-01/a.parquet": 10,
        "reports/report.html": 10,
    }
    (lake / "_manifest/rollup").mkdir(parents=True)
    (lake / "_manifest/rollup/2030-01-01.json").write_text('{"run": "named"}')
    (lake / LAST).write_text('{"run": "last"}')
    for name, days in files.items():
        path = lake / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
        age = path.stat().st_mtime - days * 86400
        os.utime(path, (age, age))
    for run_id, days in (("killed", 40), ("ended", 40), ("young", 10)):
        begun = f"INSERT INTO pipeline_write VALUES ('{run_id}', 'b', now() - interval '{days} days')"
        published.value(begun)
        published.value(f"INSERT INTO pipeline_write_part VALUES ('{run_id}', 0, 1)")
    for dry in (True, False):
        context = PipelineContext(published.settings, PipelineOptions(lake=str(lake), dry_run=dry))
        summary = vacuum(context, 86400.0, 50 * 86400.0).summary
        assert (summary["files"], summary["records_of_runs"]) == (5, 2)
        kinds = [item["kind"] for item in list_lake(context).items or ()]
        assert kinds == ["rollup", "stream", *["batch"] * (3 if dry else 1)]
        context.close()
    assert published.value("SELECT string_agg(run_id, ' ') FROM pipeline_write_part") == "young"
    left = {str(path.relative_to(lake)) for path in lake.rglob("*") if path.is_file()}
    assert left == {name for name in files if "dead" not in name} | {"_manifest/rollup/2030-01-01.json", LAST}
    assert not (lake / "jobs/v1/run=dead").exists()


def test_an_age_below_an_hour_is_refused_for_commands_and_jobs(
    migrated_dsn: str, cluster_name: str, tmp_path: Path
) -> None:
    published = published_cluster(migrated_dsn, cluster_name, tmp_path / "lake")
    context = PipelineContext(published.settings, PipelineOptions(lake=str(tmp_path / "lake")))
    file = tmp_path / "lake/jobs/v1/run=running/day=2030-01-01/a.parquet"
    file.parent.mkdir(parents=True)
    file.write_text("x")
    os.utime(file, (0, 0))
    with pytest.raises(InputError, match="files of a running step"):
        vacuum(context, 3599.0)
    with pytest.raises(InputError, match="files of a running step"):
        STEPS["vacuum"](context, {"older_than": 60.0})
    assert file.exists()
    assert vacuum(context, 3600.0).summary["files"] == 1
    context.close()
