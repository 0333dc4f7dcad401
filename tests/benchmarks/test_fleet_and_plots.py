"""The model of a fleet, and the drawing of reports."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.fleet import CONNECTIONS_MAX, SIZES, Fleet, UnitCosts, judged, limits, measured_costs, run
from benchmarks.plots import draw

COSTS = UnitCosts(agent=5.0, store=2.0, master=2.5, wal_bytes=400.0)
ORIGIN = {"commit": "abc", "taken_at": "2026-01-01T00:00:00", "machine": {"cores": 2, "python": "3.11"}}


def test_the_least_resource_decides() -> None:
    one = judged(Fleet(1, 1, 8), COSTS)
    assert one["jobs_per_second"] == 200_000
    assert one["breaks_first"] == "agents"
    assert judged(Fleet(1000, 10, 2), COSTS)["breaks_first"] == "master"
    assert judged(Fleet(1000, 1, 64), COSTS)["breaks_first"] == "stores"
    assert judged(Fleet(1000, 10, 64), COSTS)["breaks_first"] == "master_log"
    assert judged(Fleet(1000, 10, 64, handler_us=1e6), COSTS)["breaks_first"] == "agents"


def test_more_of_anything_never_makes_it_slower_but_agents_cost_the_master_their_renewals() -> None:
    base = Fleet(100, 4, 16)
    for more in (base._replace(stores=8), base._replace(master_cores=32)):
        assert judged(more, COSTS)["jobs_per_second"] >= judged(base, COSTS)["jobs_per_second"]
    assert limits(Fleet(2000, 4, 16), COSTS)["master"] < limits(base, COSTS)["master"]
    assert limits(base._replace(long_share=0.5), COSTS)["master"] < limits(base, COSTS)["master"]


def test_a_thousand_agents_on_ten_stores_are_among_the_sizes_and_open_too_many_connections() -> None:
    lines = run(COSTS)["fleets"]
    assert len(lines) == len(SIZES)
    thousand = [line for line in lines if (line["agents"], line["stores"]) == (1000, 10)]
    assert all(line["too_many_connections"] == (line["master_connections"] > CONNECTIONS_MAX) for line in lines)
    assert any(line["too_many_connections"] for line in thousand)


def test_unit_costs_come_from_a_kept_report(tmp_path: Path) -> None:
    path = tmp_path / "drain.json"
    used = {"agents": 0.006, "store": 0.001, "postgres": 0.003}
    path.write_text(json.dumps({"jobs": 1000, "wal_bytes_per_job": 321, "cpu_seconds": {"ours": used}}))
    assert measured_costs(path) == UnitCosts(agent=6.0, store=1.5, master=3.0, wal_bytes=321.0)


def test_what_is_kept_is_drawn_and_what_is_not_is_left_out(tmp_path: Path) -> None:
    drain = {"jobs_per_second": 3, "floor_jobs_per_second": 5, "raw_copy_rows_per_second": 6, **ORIGIN}
    (tmp_path / "drain.json").write_text(json.dumps(drain))
    growth = {"held_rows": [{"x": 10, "cost_us_per_job": 1.0}, {"x": 100, "cost_us_per_job": 1.1}], **ORIGIN}
    (tmp_path / "growth.json").write_text(json.dumps(growth))
    made = draw(tmp_path, tmp_path / "plots")
    assert sorted(path.name for path in made) == ["drain.svg", "growth_held_rows.svg"]
    for path in made:
        assert ElementTree.parse(path).getroot().tag.endswith("svg")  # noqa: S314
