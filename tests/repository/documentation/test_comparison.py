"""The comparison names figures of kept reports alone, and the same twelve systems everywhere."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

from tests.repository.documentation.comparison import NOT_MEASURED, RESULTS, SYSTEMS, measured_table
from tests.repository.made_texts import ROOT

PAGE = (ROOT / "docs" / "comparison.md").read_text(encoding="utf-8")


def rows(table: str) -> dict[str, list[str]]:
    """Cells of a table by its first one."""
    found = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line[:1] == "|"]
    return {cells[0]: cells[1:] for cells in found[2:]}


def test_a_system_that_no_report_has_is_not_measured() -> None:
    table = rows(measured_table())
    measured = set(json.loads((RESULTS / "peers.json").read_text(encoding="utf-8"))["rates"])
    assert len(table) == len(SYSTEMS) == 12
    for system in SYSTEMS:
        cells = table[system.name]
        assert (set(cells) == {NOT_MEASURED}) is (system.peer not in measured), system


def test_figures_follow_their_report(tmp_path: Path) -> None:
    for name in ("peers", "work"):
        shutil.copy(RESULTS / f"{name}.json", tmp_path)
    report = json.loads((tmp_path / "peers.json").read_text(encoding="utf-8"))
    report["rates"]["saq"]["1"]["ratio"] = 7.25
    (tmp_path / "peers.json").write_text(json.dumps(report))
    assert "CPU of a job: counted from the start of their workers on" in measured_table(tmp_path)
    ours = sum(report["cpu_us_per_job"]["1"]["jobmaster"].values())
    report["cpu_us_per_job"]["1"]["saq"] = {"workers": 3 * ours}
    cpu = {**report, "benchmark": "peers_cpu", "cpu_includes": "from the first job on"}
    (tmp_path / "peers_cpu.json").write_text(json.dumps(cpu))
    found = rows(measured_table(tmp_path))["SAQ"]
    assert (found[1], found[-1]) == ("7.2", "3.0")
    assert (
        "CPU of a job: counted from the first job on.\n\n*`python -m benchmarks.peers --with all --part cpu`"
        in measured_table(tmp_path)
    )


def test_every_table_has_every_system() -> None:
    names = {system.name for system in SYSTEMS}
    for table in re.findall(r"(?:^\|.*\n)+", PAGE, re.MULTILINE):
        assert set(rows(table)) - {"**JobMaster**"} == names
    assert all(f"[{name}]" in PAGE or f" {name}" in PAGE for name in names)


def test_every_figure_names_its_run() -> None:
    """Figures of three reports, and a line with benchmark, commit, day and machine below each."""
    runs = re.findall(
        r"^\*`python -m benchmarks\.([\w. -]+)`, commit [0-9a-f]{12}, \d{4}-\d\d-\d\d, .+\*$", PAGE, re.MULTILINE
    )
    assert runs[0] == "peers"
    assert runs[1] in ("peers", "peers --with all --part cpu")
    assert runs[2:] == ["work"]
