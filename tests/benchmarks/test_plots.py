"""The drawing of reports, and the tables of the simulated fleet."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.fleet import scenarios
from benchmarks.fleet.costs import Costs
from benchmarks.fleet.fleet_size import Fleet
from benchmarks.plots import draw, lines
from benchmarks.support import performance_tables

ORIGIN = {"commit": "abc", "taken_at": "2026-01-01T00:00:00", "machine": {"cores": 2, "python": "3.11"}}


def test_what_is_kept_is_drawn_and_what_is_not_is_left_out(tmp_path: Path) -> None:
    drain = {"jobs_per_second": 3, "floor_jobs_per_second": 5, "raw_copy_rows_per_second": 6, **ORIGIN}
    (tmp_path / "drain.json").write_text(json.dumps(drain))
    growth = {"held_rows": [{"x": 10, "cost_us_per_job": 1.0}, {"x": 100, "cost_us_per_job": 1.1}], **ORIGIN}
    (tmp_path / "growth.json").write_text(json.dumps(growth))
    made = draw(tmp_path, tmp_path / "plots")
    assert sorted(path.name for path in made) == ["drain.svg", "growth_held_rows.svg"]
    for path in made:
        assert ElementTree.parse(path).getroot().tag.endswith("svg")  # noqa: S314


def test_a_fleet_is_drawn_with_its_breaking_point_and_listed_in_tables(tmp_path: Path) -> None:
    costs, fleet = Costs(), Fleet(20, 2, 1, producers=4, handler_us=500.0)
    found = [
        scenarios.ramp(Fleet(4, 1, 1, producers=2, handler_us=2000.0), costs, 1.0, 1, lambda _: None),
        scenarios.grown(fleet, costs, 5.0, 1),
        scenarios.killed(fleet, costs, 100.0, 1),
        scenarios.store_away(fleet, costs, 100.0, 1, 5.0),
        scenarios.master_away(fleet, costs, 100.0, 1, 5.0),
    ]
    validation = [{"processes": 1, "buckets": 5, "measured": 100, "predicted": 90, "ratio": 0.9}]
    report = {"scenarios": found, "validation": validation, **ORIGIN}
    (tmp_path / "fleet.json").write_text(json.dumps(report))
    [plot] = draw(tmp_path, tmp_path / "plots")
    assert "breaks: agents" in plot.read_text()
    told = "\n".join(performance_tables.of_fleet(report))
    for word in ("| agents |", "agents killed", "store away", "master away", "0.90"):
        assert word in told


def test_labels_of_a_plot_do_not_lie_over_each_other() -> None:
    drawn = lines("t", "n", {"a": [(float(x), 1.0) for x in range(1, 60)]}, logarithmic=False, mark=(70.0, "here"))
    labels = [
        float(part.split('"')[1])
        for part in drawn.split("<text")[1:]
        if 'text-anchor="middle"' in part and 'y="250"' in part
    ]
    assert 2 < len(labels) < 12
