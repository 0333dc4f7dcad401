"""The simulated fleet: its machinery against formulas and synthetic costs, never against a figure of some machine."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.fleet import scenarios
from benchmarks.fleet.__main__ import main
from benchmarks.fleet.bounds import bound, limits
from benchmarks.fleet.cluster import Cluster
from benchmarks.fleet.control_plane import Control
from benchmarks.fleet.cost_fitting import fitted
from benchmarks.fleet.costs import Costs, Line, measured_costs
from benchmarks.fleet.discrete_events import Histogram, Log, Station, Timeline
from benchmarks.fleet.faults import Outage, Rescue
from benchmarks.fleet.fleet_size import Fleet

COSTS = Costs()
SMALL = Fleet(20, 2, 4, producers=5)


def settled(cluster: Cluster, seconds: float = 20.0) -> None:
    """Producers stop; what is under way ends."""
    cluster.over = True
    cluster.time.run(cluster.time.now + seconds)


# ---------------------------------------------------------------- stations


def test_waits_of_one_server_match_the_formula() -> None:
    draw, now, station, waits = random.Random(7), 0.0, Station(1), 0.0
    count, load = 100_000, 0.8
    for _ in range(count):
        now += draw.expovariate(load)
        waits += station.serve(now, 1.0) - 1.0 - now
    assert waits / count == pytest.approx(load / (2 * (1 - load)), rel=0.08)  # M/D/1
    assert station.busy / now == pytest.approx(load, rel=0.02)


def test_more_servers_share_one_queue_and_slow_ones_take_longer() -> None:
    station = Station(2, speed=0.5)
    assert [station.serve(0.0, 1.0) for _ in range(4)] == [2.0, 2.0, 4.0, 4.0]
    station.away(10.0)
    assert station.serve(5.0, 1.0) == 12.0


def test_commits_share_the_flush_after_the_one_under_way() -> None:
    time, done = Timeline(), []
    log = Log(time, 1.0, 100.0)
    for at, size in ((0.0, 0.0), (0.2, 50.0), (0.9, 50.0), (5.0, 0.0)):
        time.at(at, lambda s: log.commit(s, lambda _: done.append(round(time.now, 3)), None), size)
    time.run(10.0)
    assert done == [1.0, 3.0, 3.0, 6.0]
    assert log.flushes == 3
    assert log.busy == pytest.approx(1.0)


def test_quantiles_are_right_to_a_twentieth() -> None:
    times = Histogram()
    for n in range(1, 1001):
        times.add(n / 1000, 2.0)
    found = times.quantiles()
    assert found.p50 == pytest.approx(0.5, rel=0.06)
    assert found.p99 == pytest.approx(0.99, rel=0.06)
    assert found.longest == 1.0


# ---------------------------------------------------------------- the way of a job


def test_every_job_is_somewhere_and_in_the_end_all_are_recorded() -> None:
    cluster = Cluster(SMALL._replace(long_share=0.3), COSTS, rate=2000.0, seed=3)
    cluster.time.run(1.0)
    assert cluster.submitted == pytest.approx(2000, rel=0.15)
    assert 0 <= cluster.counted() <= cluster.in_flight
    settled(cluster)
    assert cluster.finished == cluster.submitted == cluster.starts.total
    assert cluster.persisted == pytest.approx(0.3 * cluster.submitted, rel=0.1)


def test_handlers_that_wait_are_bounded_by_slots() -> None:
    cluster = Cluster(Fleet(1, 1, 2, producers=1, wait_ms=100.0), COSTS, rate=2000.0, seed=1)
    cluster.time.run(1.0)
    assert cluster.agents[0].running <= 50
    before = cluster.finished
    cluster.time.run(3.0)
    assert (cluster.finished - before) / 2.0 == pytest.approx(500, rel=0.1)  # 50 slots, ten times a second
    settled(cluster, 60.0)
    assert cluster.finished == cluster.submitted


def test_utilisation_is_rate_times_cost() -> None:
    rate, seconds = 400.0, 5.0
    cluster = Cluster(SMALL, COSTS, rate=rate, seed=5)
    cluster.time.run(seconds)
    each = COSTS.submit.of(1) + COSTS.wake + COSTS.claim.of(1) + COSTS.settle.of(1)
    assert sum(store.busy for store in cluster.stores) / seconds == pytest.approx(rate * each, rel=0.1)
    assert cluster.master.busy / seconds == pytest.approx(rate * COSTS.copy.of(1), rel=0.1)


def test_equal_seeds_give_equal_results() -> None:
    lines = [scenarios.step(SMALL, COSTS, 3000.0, 1.0, 9) for _ in range(2)]
    for line in lines:
        del line["took"]
    assert lines[0] == lines[1]
    assert lines[0] != scenarios.step(SMALL, COSTS, 3000.0, 1.0, 10)


# ---------------------------------------------------------------- what breaks


@pytest.mark.parametrize(
    ("fleet", "costs", "guilty"),
    [
        (Fleet(4, 1, 4, producers=4, handler_us=3000.0), COSTS, "agents"),
        (Fleet(20, 1, 8, producers=8), COSTS._replace(submit=Line(1e-5, 3e-4)), "stores"),
        (Fleet(20, 4, 1, producers=8), COSTS._replace(copy=Line(1e-4, 4e-4)), "master"),
        (Fleet(20, 4, 8, producers=8, log_mb_per_second=1.0), COSTS, "master_log"),
    ],
)
def test_the_scarce_resource_is_named_and_no_fleet_does_more_than_arithmetic_allows(
    fleet: Fleet, costs: Costs, guilty: str
) -> None:
    line = scenarios.ramp(fleet, costs, 1.0, 1, lambda _: None)
    assert line["breaks_first"] == guilty == line["bound_by"]
    assert 0 < line["carries"] <= line["bound"] * 1.05
    assert line["breaks_at"] > line["carries"] * 0.9


def test_small_batches_fill_a_store_long_before_its_end_and_are_not_blamed() -> None:
    slow = COSTS._replace(
        submit=Line(15e-5, 6e-7), claim=Line(15e-5, 6e-7), settle=Line(15e-5, 2e-8), wake=1e-4
    )  # the fixed part, tenfold
    fleet = Fleet(50, 1, 64, producers=10)
    point = scenarios.step(fleet, slow, 2000.0, 1.0, 1)
    assert point["busy"]["stores"] >= scenarios.FULL
    assert not point["broken"]
    short = fleet._replace(log_mb_per_second=0.6)
    point = {**scenarios.step(short, slow, 2000.0, 1.0, 1), "busy": {"stores": 1.0, "master_log": 1.0}}
    assert point["broken"]
    assert scenarios.bottleneck(short, slow, point, 1.0, 1) == "master_log"


def test_more_of_anything_allows_no_less_but_agents_cost_the_master_their_renewals() -> None:
    fleet = Fleet(100, 4, 16)
    for more in (fleet._replace(stores=8), fleet._replace(master_cores=32)):
        assert bound(more, COSTS)[1] >= bound(fleet, COSTS)[1]
    assert limits(Fleet(2000, 4, 16), COSTS)["master"] < limits(fleet, COSTS)["master"]
    assert limits(fleet._replace(long_share=0.5), COSTS)["master"] < limits(fleet, COSTS)["master"]


def test_processes_that_share_cores_cost_more_by_the_measured_part() -> None:
    costs = COSTS._replace(crowding=0.25)
    points = [{"x": x, "cost_us_per_job": 1.0, "jobs": 8000} for x in (1, 4)]
    one, four = scenarios.crowded({"agents": points, "machine": {"cores": 2}}, costs)
    assert four["simulated_us"] / one["simulated_us"] == pytest.approx(1.5, rel=0.1)
    assert costs.crowded(1) == 1.0


def test_a_shared_machine_is_no_faster_than_its_cores() -> None:
    fleet = Fleet(1, 1, 2, used_buckets=5)
    alone = scenarios.drained(fleet, COSTS, 20_000)
    shared = scenarios.drained(fleet, COSTS, 20_000, Station(2, 0.5))
    assert shared < alone <= 1 / COSTS.job


# ---------------------------------------------------------------- the control plane and faults


def test_a_larger_cluster_renews_less_often_and_costs_the_master_more() -> None:
    few, many = (scenarios.grown(Fleet(n, 10, 8, producers=10), COSTS, 20.0, 1) for n in (100, 600))
    assert few["renew_seconds"] == 3.0
    assert many["renew_seconds"] > 5.0
    assert many["master_cores_used_in_all"] > few["master_cores_used_in_all"]
    assert many["connections"] == 600 * 3 + 10


def test_a_refresh_of_the_map_costs_what_has_changed_and_all_of_it_after_an_outage() -> None:
    costs = COSTS._replace(map=Line(0.0, 1e-3), refresh=Line(1e-3, 1e-4))
    fleet = Fleet(20, 2, 4, producers=10)
    lines = [
        scenarios.grown(each, costs, 100.0, 1)["master_cores_used"]["map"]
        for each in (fleet, fleet._replace(agents=40), fleet._replace(changes=5.0), fleet._replace(changes=1e4))
    ]
    per_second = fleet.producers / fleet.map_seconds
    assert lines[0] == lines[1] == pytest.approx(per_second * 1e-3, rel=0.1)
    assert lines[2] == pytest.approx(per_second * (1e-3 + 5.0 * fleet.map_seconds * 1e-4), rel=0.2)
    assert lines[3] <= per_second * (1e-3 + fleet.agents * fleet.buckets * 1e-4), (
        "a bucket that changes twice comes once"
    )
    cluster = Cluster(fleet, costs, rate=10.0, seed=1)
    control = Control(cluster)
    Outage(cluster, control).begin(5.0)
    cluster.time.run(5.0 + fleet.map_seconds)
    assert control.spent["map"] == pytest.approx(fleet.producers * costs.map.of(fleet.agents), rel=0.2)


def test_networks_and_slow_disks_add_to_the_time_of_a_job() -> None:
    near = scenarios.step(SMALL, COSTS, 200.0, 5.0, 1)
    far = scenarios.step(SMALL._replace(network_ms=30.0), COSTS, 200.0, 5.0, 1)
    slow = scenarios.step(SMALL._replace(flush_ms=10.0), COSTS, 200.0, 5.0, 1)
    # Submit and wake go one way each, a claim there and back.
    assert far["start_p50_ms"] - near["start_p50_ms"] == pytest.approx(2 * 30.0, rel=0.1)
    assert slow["start_p50_ms"] == pytest.approx(near["start_p50_ms"], rel=0.1)
    assert slow["record_p99_ms"] > near["record_p99_ms"] + 9.0


def test_jobs_of_killed_agents_run_elsewhere() -> None:
    cluster = Cluster(SMALL._replace(handler_us=30_000.0), COSTS, rate=500.0, seed=2)
    rescue = Rescue(cluster, Control(cluster))
    cluster.time.run(5.0)
    assert rescue.kill(4) > 0
    cluster.time.run(10.0)
    assert rescue.certified == 0  # no agent is certified dead before its lease has ended
    cluster.time.run(18.0)
    assert rescue.certified == 4
    assert rescue.drained == 4 * SMALL.buckets
    settled(cluster)
    assert rescue.rescued > 0
    assert cluster.finished == cluster.submitted


def test_a_store_that_is_away_for_longer_than_a_lease_fences_its_agents_and_no_job_is_missing() -> None:
    cluster = Cluster(SMALL, COSTS, rate=300.0, seed=2)
    control = Control(cluster)
    Rescue(cluster, control)
    cluster.time.run(5.0)
    cluster.stores[0].away(25.0)
    cluster.time.run(24.0)
    assert control.fenced == SMALL.agents // SMALL.stores
    cluster.time.run(60.0)
    assert len([agent for agent in cluster.agents if agent.alive]) == SMALL.agents
    settled(cluster)
    assert cluster.finished == cluster.submitted


def test_while_the_master_is_away_outcomes_are_kept_and_no_agent_fences_itself() -> None:
    cluster = Cluster(SMALL, COSTS, rate=300.0, seed=2)
    control = Control(cluster)
    outage = Outage(cluster, control)
    cluster.time.run(5.0)
    outage.begin(20.0)
    cluster.time.run(24.0)
    assert outage.kept > 1000
    assert control.suspended == SMALL.agents
    cluster.time.run(40.0)
    settled(cluster)
    assert control.fenced == 0
    assert control.longest_gap > 10.0
    assert cluster.finished == cluster.submitted


# ---------------------------------------------------------------- costs and the command


def test_costs_are_fitted_and_read_from_kept_reports(tmp_path: Path) -> None:
    assert fitted([(1, 3.0), (10, 12.0), (100, 102.0)]) == {"fixed": 2.0, "per": 1.0}
    assert fitted([(1, 5.0), (10, 4.0)])["per"] == 0.0
    fit = {"server_us": {"fixed": 100.0, "per": 2.0}, "client_us": {"fixed": 50.0, "per": 1.0}}
    of_rows = {**fit, "wal_bytes": {"fixed": 60.0, "per": 370.0}}
    single = ("beat", "empty_claim", "grant_term", "hint", "wake")
    report = {
        "rows": dict.fromkeys(("copy", "upsert", "persist", "hold", "onboard"), of_rows),
        "control": dict.fromkeys(("renew", "leader_tick", "certify", "take_lost", "draining", "map", "compare"), fit),
        "store": dict.fromkeys(("submit", "claim", "settle", *single), fit),
        "flush_us": 200.0,
    }
    path, none = tmp_path / "fleet_costs.json", tmp_path / "none.json"
    path.write_text(json.dumps(report))
    found = measured_costs(path, none, none, none, none, none)
    assert found.copy == Line(1e-4, 2e-6)
    assert found.log_bytes == Line(60.0, 370.0)
    assert found.flush == pytest.approx(2e-4)
    assert found.claim_client.fixed == pytest.approx(1e-4)  # with the wake before it
    drained = tmp_path / "drain.json"
    drained.write_text(json.dumps({"jobs": 1000, "cpu_seconds": {"ours": {"agents": 0.006}}}))
    assert measured_costs(none, drained, none, none, none, none).job == pytest.approx(6e-6 - COSTS.cycle / 1000)
    mapped = tmp_path / "bucket_map.json"
    of_map = {f"{count} changed": {"master_us": {"median": 100 + 2 * count}, "producer_us": {"median": 50 + count}}
              for count in (0, 10, 100)}  # fmt: skip
    mapped.write_text(json.dumps({"ways": {"first refresh": {}, **of_map}}))
    assert measured_costs(none, none, none, none, mapped, none).refresh == Line(1e-4, 2e-6)
    assert measured_costs(none, none, none, none, mapped, none).refresh_client == Line(5e-5, 1e-6)
    grown = tmp_path / "growth.json"
    grown.write_text(
        json.dumps({"agents": [{"x": x, "cost_us_per_job": 8.0 + 2.0 * at} for at, x in enumerate((1, 2, 4))]})
    )
    assert measured_costs(none, none, none, none, none, grown).crowded(8) == pytest.approx(1.75)
    assert measured_costs(none, none, none, none, none, none) == COSTS


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--agents", "0"), "agents must be at least 1"),
        (("--agents", "5", "--stores", "9"), "9 stores for 5 agents"),
        (("--agents", "5", "--stores", "1", "--long-share", "1.5"), "between 0 and 1"),
        (("--agents", "5", "--stores", "1", "--rate", "-3"), "--rate"),
        (("--agents", "5", "--stores", "1", "--save"), "--save"),
        (("--rate", "100"), "give --agents"),
        (("--seconds", "0"), "--seconds"),
        (("--agents", "5", "--stores", "1", "--network-ms", "-1"), "network_ms is between 0 and 1000"),
        (("--agents", "90000"), "more than is simulated"),
    ],
)
def test_nonsense_is_refused_by_name(arguments: tuple[str, ...], said: str) -> None:
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 2
    assert said in done.output


def test_a_fleet_of_ones_own_at_a_given_load() -> None:
    done = CliRunner().invoke(
        main, ["--agents", "10", "--stores", "2", "--rate", "500", "--producers", "3", "--seconds", "1", "--json"]
    )
    assert done.exit_code == 0, done.output
    found = json.loads(done.output.splitlines()[-1])
    [line] = found["scenarios"]
    assert line["breaks_first"] == "nothing"
    assert line["finished"] == pytest.approx(500, rel=0.3)
    assert found["connections"] == 33
