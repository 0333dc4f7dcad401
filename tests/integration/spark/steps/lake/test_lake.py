"""The lake: whole documents, strangers refused, a full disk costs nothing; and plots hold what they show."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jobmaster.model.errors import JobMasterError, Refused, Unavailable
from jobmaster.pipeline.lake.lake import Lake
from jobmaster.pipeline.report import html, svg
from jobmaster.pipeline.report.histograms import gini
from tests.integration.spark.steps.conftest import SeededCluster


def test_a_document_is_replaced_whole_and_a_crash_in_between_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(str(tmp_path / "lake"))
    lake.write_json("_manifest/jobs/a.json", {"run": 1})
    monkeypatch.setattr(Path, "replace", _crash)
    with pytest.raises(KeyboardInterrupt):
        lake.write_json("_manifest/jobs/a.json", {"run": 2})
    assert lake.documents("_manifest/jobs") == {"a": {"run": 1}}
    assert lake.read_json("_manifest/jobs/b.json") is None


def _crash(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_document_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "_lake.json").write_text("{")
    with pytest.raises(Refused, match=r"_lake.json of the lake is no JSON"):
        Lake(str(tmp_path)).check("uid", create=True)


def test_a_lake_is_marked_once_and_belongs_to_one_cluster(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "new"))
    lake.check("one", create=False)
    assert not (tmp_path / "new").exists(), "a dry run marks nothing"
    lake.check("one", create=True)
    lake.check("one", create=True)
    with pytest.raises(Refused, match=r"belongs to another cluster \(one, ours is two\)"):
        lake.check("two", create=True)


def test_paths_sizes_and_digests(tmp_path: Path) -> None:
    lake = Lake(f"file://{tmp_path}/my lake")
    lake.write("jobs/a.parquet", b"abc")
    assert lake.files("jobs") == ["jobs/a.parquet"]
    assert lake.files("nothing") == []
    assert (lake.size("jobs/a.parquet"), lake.size("jobs/b.parquet")) == (3, None)
    assert lake.digest("jobs/a.parquet") == hashlib.sha256(b"abc").hexdigest()
    assert lake.url("jobs/a.parquet") == f"file://{tmp_path}/my lake/jobs/a.parquet", (
        "Spark takes a path as it is written"
    )
    with pytest.raises(Unavailable, match="cannot read"):
        lake.digest("jobs/b.parquet")


def test_plots_show_every_value_and_survive_none() -> None:
    series = {"p50": [(0, 1.0), (1, None), (2, 4.0)]}
    plain = svg.Scale(str)
    drawn = "".join(svg.lines(series, plain, svg.Scale(str, log=True), goals={"goal": 2.0}).elements)
    assert drawn.count("<circle") == 2
    assert drawn.count("<polyline") == 2, "a gap is a gap"
    assert "goal" in drawn
    assert html.figure(lambda _: svg.lines({"p50": []}, plain, plain)) == html.nothing()
    assert "".join(svg.lines({"one": [(5, 3.0)]}, plain, plain).elements).count("<circle") == 1
    data = [(0, (1, 2)), (1, (0, 3))]
    bars = html.figure(lambda canvas: svg.stacked(["a", "b"], data, plain, plain, width=1, canvas=canvas))
    assert bars.count("<rect") == 6, "for a window and for a phone"
    cells = svg.cells(["Mon", "Tue"], ["0", "1"], {(0, 0): (3.0, "three"), (1, 1): (0.0, "none")})
    assert "".join(cells.elements).count("<rect") == 2
    assert "&lt;b&gt;" in html.ranking([("<b>", 2.0)], format_value=str), "names are text"
    assert "<script" not in html.page("t", "s", [bars])


def test_gini() -> None:
    assert gini([5, 5, 5]) == 0.0
    assert gini([0, 0, 9]) == pytest.approx(2 / 3)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 300 KB; skipped where this user may not mount one."""
    where = tmp_path / "disk"
    where.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(where)]
    mounted = subprocess.run(mount, check=False, capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("this user may not mount a small disk")
    yield where
    subprocess.run(["umount", "-l", str(where)], check=True)


@pytest.mark.slow
def test_a_full_disk_is_one_clear_error_and_nothing_is_dropped(seeded: SeededCluster, small_disk: Path) -> None:
    from jobmaster.pipeline.steps.archive import archive

    rows = 20_000
    seeded.lake = small_disk / "lake"
    seeded.fill_days(3, rows=rows)
    with pytest.raises(Unavailable, match="No space left on device"):
        archive(seeded.run(), 2.0, keep=False)
    assert seeded.value("SELECT count(*) FROM jobs") == rows
    assert seeded.value("SELECT count(*) FROM archive_manifest WHERE state = 'DROPPED'") == 0
    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    assert archive(seeded.run(), 2.0, keep=False).rows == rows
    assert seeded.value("SELECT count(*) FROM jobs") == 0


@pytest.mark.slow
def test_a_lake_that_is_read_only_is_one_clear_error_and_nothing_leaves_or_is_forgotten(
    seeded: SeededCluster, small_disk: Path
) -> None:
    from jobmaster.pipeline.steps.archive import archive
    from jobmaster.pipeline.steps.doctor import _lake
    from jobmaster.pipeline.steps.forget_jobs import Forgotten, compact, forget_jobs

    rows = 300
    seeded.lake = small_disk / "lake"
    seeded.fill_days(3, 2, rows=rows)
    assert archive(seeded.run(), 2 * 86_400.0 - 5, keep=False).rows == rows, "the older day"
    before = {path: path.read_bytes() for path in seeded.lake.rglob("*.parquet")}
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(JobMasterError, match="cannot be written: Read-only file system"):
        _lake(seeded.run())
    works: tuple[Callable[[], object], ...] = (
        lambda: archive(seeded.run(), 2.0, keep=False),
        lambda: forget_jobs(seeded.run(), Forgotten()),
        lambda: compact(seeded.run()),
    )
    for work in works:
        with pytest.raises(Unavailable, match="Read-only file system"):
            work()
    assert seeded.value("SELECT count(*) FROM jobs") == rows
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    assert {path: path.read_bytes() for path in before} == before
    assert archive(seeded.run(), 2.0, keep=False).rows == rows
