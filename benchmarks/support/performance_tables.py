"""The tables of ``docs/performance.md``, written from the kept reports, so that no figure there was ever typed in."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

Report = dict[str, Any]
_IDLE_CORES = 0.1
BEGIN, END = "<!-- figures:begin -->", "<!-- figures:end -->"


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Markdown."""
    lines = [f"| {' | '.join(heads)} |", f"| {' | '.join('---' for _ in heads)} |"]
    return [*lines, *(f"| {' | '.join(map(_shown, row))} |" for row in rows)]


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _range(spread: Report) -> str:
    return f"{spread['min']:,.0f} - {spread['max']:,.0f}"


def of_drain(report: Report) -> list[str]:
    """Ours, the floor, COPY alone; then the cases."""
    names = {"ours": "JobMaster", "floor": "floor", "raw_copy": "COPY alone"}
    rows = [
        (
            names[kind],
            spread["median"],
            _range(spread),
            ", ".join(f"{k} {v}" for k, v in report["cpu_seconds"][kind].items()),
        )
        for kind, spread in report["spread"].items()
    ]
    lines = table(
        ("200,000 jobs" if report["jobs"] == 200_000 else f"{report['jobs']} jobs", "jobs/s", "range", "CPU seconds"),
        rows,
    )
    lines += ["", f"Share of the floor: **{report['share_of_floor']:.0%}**; floor as a share of COPY alone: "
              f"{report['floor_share_of_raw_copy']:.0%}; {report['wal_bytes_per_job']} bytes of log per job."]  # fmt: skip
    if report.get("cases"):
        rows_of_cases = [
            (one["work"], one["processes"], one["buckets"], one["jobs_per_second"], f"{one['share_of_floor']:.0%}")
            for one in report["cases"]
        ]
        lines += ["", *table(("work", "processes", "buckets", "jobs/s", "share of floor"), rows_of_cases)]
    return lines


def of_submit(report: Report) -> list[str]:
    """Callers by durability."""
    names = list(report["single"])
    counts = list(report["single"][names[0]])
    rows: list[list[object]] = [
        [f"{count} callers" if count != "1" else "one caller", *(report["single"][name][count] for name in names)]
        for count in counts
    ]
    if own := report.get("single_own_id"):
        rows += [
            [f"{count} callers, each with `job_id=`", *(own[name][count] for name in names)] for count in own[names[0]]
        ]
    rows.append(["`submit_many`", *(report["bulk_jobs_per_second"][name] for name in names)])
    return [*table(("jobs/s", *(f"`{name}`" for name in names)), rows), *_cpu_of_submit(report, names)]


def _cpu_of_submit(report: Report, names: Sequence[str]) -> list[str]:
    """CPU of each process; nothing for reports that are older than this figure."""
    used = {name: report.get("details", {}).get(name, {}) for name in names}
    ways = {"100": "100 callers", "own_id_100": "100 callers, each with `job_id=`", "bulk": "`submit_many`"}
    rows = [
        (about, *(_cpu(used[name][way]["cpu_us_per_job"]) for name in names))
        for way, about in ways.items()
        if all("cpu_us_per_job" in of_ways.get(way, {}) for of_ways in used.values())
    ]
    heads = ("CPU µs a job: producer / store / PostgreSQL", *(f"`{name}`" for name in names))
    return ["", *table(heads, rows)] if rows else []


def _cpu(used: Report) -> str:
    return " / ".join(f"{used[process]:g}" for process in ("producer", "store", "postgres"))


def of_peers(report: Report) -> list[str]:
    """Rates, ratios, promises."""
    rows = []
    for name, counts in sorted(report["rates"].items(), key=lambda item: report["ratio"][item[0]]):
        cells = [f"{one['theirs']:,.0f} ({one['ratio']:g}x)" for one in counts.values()]
        about = report["peers"][name]
        version = next(iter(about["versions"].values()))
        rows.append(
            [f"{name} {version}", *cells, about["durable_at_acknowledgement"].split(":")[0], about["outcome_kept"]]
        )
    ours = [f"**{one['ours']:,.0f}**" for one in next(iter(report["rates"].values())).values()]
    rows.insert(
        0, ["**JobMaster**", *ours, "in the store's append-only file, or a committed row", "a row in the master"]
    )
    heads = ("drain, jobs/s", *(f"{count} process{'es' if count > 1 else ''}" for count in report["processes"]))
    lines = table((*heads, "durable when acknowledged", "outcome kept"), rows)
    if "concurrent_submit_ratio" in report:
        ways = ("single", "concurrent", "bulk")
        levels = sorted({name for way in ways for name in report[f"{way}_submit"] if name.startswith("jobmaster (")})
        submits = [
            (f"**JobMaster, level `{level[11:-1]}`**", *(report[f"{way}_submit"].get(level, "-") for way in ways))
            for level in levels
        ]
        submits += [(name, *(_ratio(report, way, name) for way in ways)) for name in report["rates"]]
        heads_submit = ("submit, jobs/s (ours at their durability is x times)", "one by one", "100 callers", "bulk")
        lines += ["", *table(heads_submit, submits)]
    if "cpu_us_per_job" in report:
        lines += ["", *of_peers_cpu(report)]
    return [*lines, *_not_measured(report)]


def of_peers_cpu(report: Report) -> list[str]:
    """Processor time of a job, by kind of process."""
    lines: list[str] = []
    for count, used in report["cpu_us_per_job"].items():
        kinds = ("agents", "workers", "postgres", "store")
        rows = [(name, *(one.get(kind, "") for kind in kinds)) for name, one in used.items() if one]
        head = f"drain, CPU microseconds a job, {count} process{'es' if count != '1' else ''}"
        lines += [*table((head, *kinds), rows), ""]
    return [*lines, f"Counted {cpu_includes(report)}."]


def cpu_includes(report: Report) -> str:
    """What the processor time of a report beside other systems has in it."""
    earlier = "from the start of their workers on, ours without a start: the difference is overstated"
    return str(report.get("cpu_includes", earlier))


def _not_measured(report: Report) -> list[str]:
    """Each with the beginning of its reason."""
    reasons = {name: (reason.splitlines() or [""])[0] for name, reason in report.get("unusable", {}).items()}
    return ["", *(f"* Not measured: {name}. {reason}." for name, reason in reasons.items())] if reasons else []


def _named(report: Report, name: str) -> str:
    """A system with its version."""
    about = report["peers"].get(name)
    return "**JobMaster**" if about is None else f"{name} {next(iter(about['versions'].values()))}"


def of_peer_kinds(report: Report) -> list[str]:
    """Rates by kind of work, ours divided by theirs beside each; work first, then sizes."""
    kinds = report["kinds"]
    names = list(dict.fromkeys(name for found in kinds.values() for name in found["jobs_per_second"]))
    sized = [kind for kind in kinds if kind.startswith(("arguments_", "results_"))]
    lines: list[str] = []
    for group in ([kind for kind in kinds if kind not in sized], sized):
        rows = [(_named(report, name), *(_kind(kinds[kind], name) for kind in group)) for name in names]
        heads = (f"`{kind}`" + (", worker processes" if kinds[kind]["mode"] == "process" else "") for kind in group)
        title = f"jobs/s, {report['processes']} processes each (ours is x times)"
        lines += ["", *table((title, *heads), rows)] if group else []
    return [*lines[1:], *_not_measured(report)]


def _kind(found: Report, name: str) -> str:
    rate, ratio = found["jobs_per_second"].get(name), found["ratio"].get(name)
    return "-" if rate is None else f"**{rate:,.0f}**" if ratio is None else f"{rate:,.0f} ({ratio:g}x)"


def of_peer_latency(report: Report) -> list[str]:
    """Quantiles, the shortest median first."""
    found = sorted(report["latency"].items(), key=lambda item: float(item[1]["p50_ms"]))
    rows = [
        (
            "bare blocking pop" if name == "bare_pop" else _named(report, name),
            one["p50_ms"],
            one["p99_ms"],
            one["max_ms"],
        )
        for name, one in found
    ]
    heads = (f"submit to start at {report['per_second']:g} jobs/s, milliseconds", "p50", "p99", "max")
    return [*table(heads, rows), *_not_measured(report)]


def of_peer_rescue(report: Report) -> list[str]:
    """Seconds after each kind of kill, and what the system states about it."""
    within = report["within_seconds"]
    rows = [
        (
            _named(report, name), *(_came(kills.get(case), within) for case in ("child", "worker")),
            report["peers"].get(name, {}).get("after_kill", "runs again"),
        )
        for name, kills in report["killed"].items()
    ]  # fmt: skip
    heads = ("seconds from SIGKILL to the next start", "the process of the job", "the whole worker", "as it states")
    return [*table(heads, rows), *_not_measured(report)]


def _came(kills: Report | None, within: float) -> str:
    if not kills or not kills["kills"]:
        return "-"
    missing = kills["kills"] - kills["came_again"]
    never = f"not within {within:g} s" + (f" ({missing} of {kills['kills']})" if kills["came_again"] else "")
    seconds = [f"{kills['p50_seconds']:g}"] if kills["came_again"] else []
    return "; ".join([*seconds, *([never] if missing else [])])


def _ratio(report: Report, way: str, name: str) -> str:
    rate = report[f"{way}_submit"].get(name)
    return "-" if rate is None else f"{rate:,.0f} ({report[f'{way}_submit_ratio'][name]:g}x)"


def of_latency(report: Report) -> list[str]:
    """Quantiles."""
    rows: list[tuple[object, ...]] = [
        ("submit to start, 100 jobs/s", report["p50_ms"], report["p99_ms"], report["max_ms"]),
        ("bare blocking pop", report["floor_p50_ms"], report["floor_p99_ms"], ""),
    ]
    kinds = {
        "held": "due time to start, HELD jobs",
        "half_load": "submit to start, half load",
        "half_load_untuned": "the same without `tune_collector`",
        "commit_to_start_hinted": "commit to start, `cluster.transaction`",
        "commit_to_start_bare": "commit to start, bare connection",
    }
    for kind, name in kinds.items():
        if (one := report.get(kind)) is None:  # it was kept before this was measured
            continue
        name = f"{name} ({one['jobs_per_second']:,} jobs/s)" if "jobs_per_second" in one else name
        rows.append((name, one["p50_ms"], one["p99_ms"], one["max_ms"]))
    return table(("milliseconds", "p50", "p99", "max"), rows)


def of_onboard(report: Report) -> list[str]:
    """Small table beside large table."""
    rows = [
        (f"{report['held_small_table']:,}", report["jobs_per_second_small_table"], _range(report["spread"]["small"])),
        (f"{report['held']:,}", report["jobs_per_second"], _range(report["spread"]["large"])),
    ]
    lines = table(("jobs held for later", "onboarded/s", "range"), rows)
    if whole := report.get("held_to_outcome_jobs_per_second"):
        lines += ["", f"From HELD to the recorded outcome: {whole['median']:,.0f} jobs/s ({_range(whole)})."]
    return lines


def of_growth(report: Report) -> list[str]:
    """Cost at every point of every axis."""
    lines: list[str] = []
    for axis, points in report.items():
        if isinstance(points, list):
            cells = ", ".join(f"{point['x']:,}: {point['cost_us_per_job']:g}" for point in points)
            lines.append(f"* {axis.replace('_', ' ')}: {cells}")
    return ["CPU microseconds per job:", "", *lines]


def of_small(report: Report) -> list[str]:
    """One line of names and figures."""
    shown = {
        key: value for key, value in report.items() if isinstance(value, int | float) and key != "other_work_cores"
    }
    return table(("", ""), ((key.replace("_", " "), value) for key, value in shown.items()))


def of_work(report: Report) -> list[str]:
    """Kinds of work by mode, beside the cores and Celery."""
    rows = [
        (*case.split(" ")[::-1], found["jobs_per_second"], _range(found["spread"]), found["cpu_us_per_job"]["agents"])
        for case, found in report["cases"].items()
    ]
    lines = table(("work", "mode", "jobs/s", "range", "CPU microseconds a job, agent and workers"), rows)
    if "share_of_bare" in report and report["other_work_cores"] <= _IDLE_CORES:  # else it compares other work, too
        lines += ["", f"Jobs of 1 ms of processor time in {report['workers']} worker processes: **"
                  f"{report['share_of_bare']:.0%}** of a bare loop in as many processes."]  # fmt: skip
    if "ratio_to_celery" in report:
        lines += ["", f"No-op jobs in worker processes, beside Celery's prefork pool in turns: **"
                  f"{report['ratio_to_celery']:g}** times as many."]  # fmt: skip
    return lines


def of_first_steps(report: Report) -> list[str]:
    """What a newcomer types and waits for."""
    steps = ", ".join(f"{name} {seconds:g}" for name, seconds in report["steps"].items())
    rows = [
        ("lines that are typed, commands included", report["typed_lines"], ""),
        ("seconds from `git clone` to the result of the first job", report["seconds"], steps),
        (
            "`import jobmaster`, ms",
            report["import_ms"],
            f"{report['import_over_import_of_asyncio']:g} times `import asyncio`",
        ),
        (
            "`run_handler` of a call, ms",
            report["run_handler_ms"],
            f"{report['run_handler_over_asyncio_run']:g} times `asyncio.run` of the bare coroutine",
        ),
    ]
    return table(("", "", ""), rows)


def of_calls(report: Report) -> list[str]:
    """Ratios alone."""
    counts = list(report["call_over_mapping"])
    rows = [
        (name, *(f"{report[key][count]:.2f}" for count in counts))
        for name, key in (("jobs a second", "call_over_mapping"), ("jobs a CPU second", "call_over_mapping_cpu"))
    ]
    heads = (f"{count} callers" if count != "1" else "one caller" for count in counts)
    return table(("`submit(call(...))` over `submit(name, mapping)`", *heads), rows)


def of_fleet(report: Report) -> list[str]:
    """The guide: everything here but the measured column is simulated."""
    lines = ["Simulated from measured unit costs; one column is measured.", "", *_of_validation(report)]
    lines += ["", "How much load a fleet carries, and what is full when it no longer does:", "", *_of_ramps(report)]
    lines += ["", "More and more agents at next to no load: what they cost their servers.", "", *_of_agents(report)]
    return [*lines, "", "Faults, 1,000 agents on 10 stores:", "", *_of_faults(report)]


def _lines_of(report: Report, *names: str) -> list[Report]:
    return [line for line in report["scenarios"] if line["scenario"] in names]


def _of_validation(report: Report) -> list[str]:
    rows = [
        (one["processes"], one["buckets"], one["measured"], one["predicted"], f"{one['ratio']:.2f}")
        for one in report["validation"]
    ]
    lines = table(("processes", "buckets", "jobs/s, measured", "jobs/s, simulated", "simulated / measured"), rows)
    starts = [
        (one["jobs_per_second"], *(one[f"{how}_{which}_ms"] for which in ("p50", "p99") for how in ("measured", "simulated")))
        for one in report.get("validation_latency", ())
    ]  # fmt: skip
    heads = ("submit to start at jobs/s", "p50 ms, measured", "simulated", "p99 ms, measured", "simulated")
    return [*lines, "", *table(heads, starts)] if starts else lines


def _of_ramps(report: Report) -> list[str]:
    rows = []
    for one in _lines_of(report, "ramp"):
        good = next((point for point in reversed(one["points"]) if not point["broken"]), one["points"][0])
        rows.append((
            one["agents"], one["stores"], one["master_cores"], one["handler_ms"], f"{one['long_share']:.0%}",
            one["carries"], good["start_p99_ms"], good["rows_per_copy"], one["breaks_at"] or "-",
            one["breaks_first"].replace("_", "'s "), one["bound"],
        ))  # fmt: skip
    heads = (
        "agent processes", "stores", "master cores", "handler ms", "long or held", "carries, jobs/s", "start p99 ms",
        "rows a COPY", "breaks at", "full first", "bound by arithmetic",
    )  # fmt: skip
    return table(heads, rows)


def _of_agents(report: Report) -> list[str]:
    rows = [
        (
            one["agents"], one["producers"], one.get("changes", 0.0), one["lease_seconds"],
            one["master_cores_used"]["renew"], one["master_cores_used"]["map"],
            one["master_cores_used_in_all"], one["renewal_p99_ms"], one["map_ms"], one["map_decode_ms"],
            one.get("whole_map_decode_ms", one["map_decode_ms"]), f"{one['store_busy']:.1%}", one["connections"],
        )
        for one in _lines_of(report, "agents")
    ]  # fmt: skip
    heads = (
        "agent processes", "producers", "buckets changed a second", "lease, s", "master cores: renewals", "bucket maps",
        "in all", "renewal p99 ms", "map ms", "its decoding ms", "that of a whole map ms", "a store's thread", "connections",
    )  # fmt: skip
    return table(heads, rows)


def _of_faults(report: Report) -> list[str]:
    rows = [(one["scenario"].replace("_", " "), *_of_fault(one)) for one in _lines_of(report, *_FAULTS)]
    heads = ("fault", "jobs/s", "as before after", "most jobs waiting", "fenced themselves", "and")
    return table(heads, rows)


_FAULTS = ("agents_killed", "store_away", "master_away")


def _of_fault(one: Report) -> tuple[object, ...]:
    back = one["seconds_until_usual"]
    match one["scenario"]:
        case "agents_killed":
            more = (
                f"{one['killed']} killed with {one['jobs_in_them']:,} jobs; certificates after "
                f"{one['first_certificate_after']:g} to {one['last_certificate_after']:g} s, last bucket emptied after "
                f"{one['last_bucket_after']:g} s, {one['rescued']:,} jobs rescued"
            )
        case "store_away":
            more = f"away {one['away_seconds']:g} s under {one['agents_on_it']} agents; {one['rescued']:,} jobs rescued"
        case _:
            more = (
                f"away {one['away_seconds']:g} s, caught up {one['catch_up_seconds']} s later; {one['kept_in_stores']:,} "
                f"outcomes kept in stores; longest without a renewal {one['longest_without_renewal_seconds']:g} s, "
                f"lease {one['lease_seconds']:g} s (on store leases)"
            )
    return (one["jobs_per_second"], "-" if back is None else f"{back:g} s", one["most_waiting"], one["fenced"], more)


def of_fleet_costs(report: Report) -> list[str]:
    """What the simulation is made from."""
    rows: list[tuple[object, ...]] = []
    for name, one in report["rows"].items():
        at = {point["x"]: point for point in one["points"]}
        rows.append((f"{name}", *(at[size]["server"] if size in at else "" for size in (1, 100, 1000))))
    for name in ("submit", "claim", "settle"):
        at = {point["x"]: point for point in report["store"][name]["points"]}
        rows.append((f"store: {name}", *(at[size]["server"] if size in at else "" for size in (1, 100, 1000))))
    lines = ["CPU of the server for one call, in microseconds:", ""]
    lines += table(("by rows of the batch", "1", "100", "1,000"), rows)
    sizes = [point["x"] for point in next(iter(report["control"].values()))["points"]]
    grown = [(name, *(point["server"] for point in one["points"])) for name, one in report["control"].items()]
    return [
        *lines,
        "",
        *table((f"by agents with {report['buckets_per_agent']} buckets", *(f"{x:,}" for x in sizes)), grown),
    ]


def of_web(report: Report) -> list[str]:
    """Pages, then viewers."""
    stored = f"{report['jobs']:,} jobs in the master, {report['in_stores']:,} in a store"
    rows = [(name, one["p50_ms"], one["p95_ms"]) for name, one in report["pages"].items()]
    lines = table((f"milliseconds; {stored}", "p50", "p95"), rows)
    names = ("viewers", "statements_per_second", "page_server_cpu", "master_cpu")
    heads = ("viewers of the stream", "statements a second", "cores of the page server", "cores of the master")
    return [*lines, "", *table(heads, ([one[name] for name in names] for one in report["viewers"]))]


def of_bulk(report: Report) -> list[str]:
    """The operation alone, and a drain beside one."""
    cpu = ", ".join(f"{name} {seconds:g}" for name, seconds in report["cpu_seconds"].items())
    rows: list[Sequence[object]] = [
        ("jobs retried", report["jobs"]), ("seconds", report["seconds"]), ("jobs a second", report["jobs_per_second"]),
        ("CPU seconds", cpu),
    ]  # fmt: skip
    if "drain_ratio" in report:
        rows.append(("rate of a drain beside an operation, as a share of one alone", f"{report['drain_ratio']:.0%}"))
    return table(("", ""), rows)


def of_flow(report: Report) -> list[str]:
    """Chains, batches, tenants and limits; a part that was not run has no row."""
    names = {
        "chain_ms": "chain of 10 steps, light load, ms",
        "chain_p99_ms": "chain of 10 steps, p99, ms",
        "batch_children": "children of a batch submitted a second",
        "batch_children_share": "the same as a share of `submit_many`",
        "batch_callback_seconds": "callback after the last outcome, s",
        "tenant_wait_ratio": "p99 wait of 999 tenants beside a flood, over the same alone",
        "limited_starts_per_second": "starts a second under one limit of 100, 20 agents",
        "limited_most_at_once": "most of them at once",
        "unlimited_starts_per_second": "starts a second without the limit",
    }
    return table(("", ""), [(title, report[name]) for name, title in names.items() if name in report])


def of_sizing(report: Report) -> list[str]:
    """What to buy: resources, and what is used of them."""
    rows = []
    for one in report["sizes"]:
        busy = one["busy"]
        rows.append((
            one["jobs_per_second"], one["handler_ms"], one["network_ms"], round(one["flush_ms"], 2), one["agents"],
            one["stores"], one["master_cores"], one["producers"], one["connections"], one["log_mb_per_second"],
            " / ".join(f"{busy[name]:.0%}" for name in ("agents", "stores", "master")),
            one["start_p50_ms"], one["start_p99_ms"],
        ))  # fmt: skip
    heads = (
        "jobs/s", "handler CPU ms", "network ms", "flush ms", "agent processes, a core each", "stores, a core each",
        "cores of PostgreSQL", "producer processes", "connections", "log MB/s", "busy: agents / busiest store / PostgreSQL",
        "start p50 ms", "start p99 ms",
    )  # fmt: skip
    return table(heads, rows)


def of_bucket_map(report: Report) -> list[str]:
    """A refresh, whole and by changes."""
    rows = [
        (
            name, one["master_us"]["median"], one["producer_us"]["median"], one["received_bytes"]["median"],
            one["master_cores_for_1000_producers"], one["mb_per_second_for_1000_producers"],
        )
        for name, one in report["ways"].items()
    ]  # fmt: skip
    heads = (
        f"refresh of the map of {report['buckets']:,} buckets", "PostgreSQL, CPU us", "producer, CPU us", "bytes",
        "1,000 producers: cores of PostgreSQL", "MB/s",
    )  # fmt: skip
    return table(heads, rows)


def of_hints(report: Report) -> list[str]:
    """A second of the leader, by the buckets of the cluster."""
    sizes = report["by_buckets"]
    cases = next(iter(sizes.values()))
    rows = [
        (case, *(sizes[size][case][side]["median"] for side in ("master_us", "leader_us") for size in sizes))
        for case in cases
    ]
    heads = [f"{side}, {int(size):,} buckets" for side in ("PostgreSQL, CPU us", "leader, CPU us") for size in sizes]
    return table(("one second of the leader", *heads), rows)


def of_pipeline(report: Report) -> list[str]:
    """Moving, then queries beside JDBC."""
    rates = {
        "read, all columns of `jobs`": "read_rows_per_second",
        "the same with Spark's JDBC reader": "jdbc_read_rows_per_second",
        "write, new rows": "write_rows_per_second",
        "the same columns with Spark's JDBC writer, without a look for rows that are there": "jdbc_write_rows_per_second",
        "the same batch again, nothing inserted": "replay_rows_per_second",
        "archive: verified, published, dropped": "archive_rows_per_second",
    }
    lines = table(
        (f"{report['rows']:,} jobs", "rows/s"),
        [(title, report[name]) for title, name in rates.items() if report.get(name) is not None],
    )
    if history := _of_history(report):
        lines += ["", *history]
    if not report.get("queries"):
        return lines
    ways = {"plain": "plain", "options": "with options", "frame": "`table_frame`"}
    heads = ("seconds of a query", *ways.values(), "JDBC", *(f"{title} / JDBC" for title in ways.values()))
    names = (*(f"{way}_seconds" for way in ways), "jdbc_seconds", *(f"{way}_over_jdbc" for way in ways))
    rows = [(query, *(one.get(name, "-") for name in names)) for query, one in report["queries"].items()]
    return [*lines, "", *table(heads, rows)]


def _of_history(report: Report) -> list[str]:
    """What a whole history takes, and what an export costs others; only what the report has."""
    old, new = report.get("increment_old_jobs", 0), report.get("increment_new_jobs", 0)
    names = {
        f"roll-up of {report.get('archived_jobs', 0):,} jobs, from nothing": "rollup_seconds",
        f"audit of {report.get('archived_jobs', 0):,} jobs": "audit_seconds",
        f"roll-up of a day of {new:,} jobs over {old:,} earlier ones": "increment_new_seconds",
        "the same with nothing new": "increment_nothing_seconds",
    }
    rows = [(title, report[name]) for title, name in names.items() if name in report]
    lines = table(("history", "seconds"), rows) if rows else []
    if "driver_rss_mb" in report:
        lines += ["", f"The driver took {report['driver_rss_mb']} MB beside Java."]
    if "submit_p99_over_alone" in report:
        alone, beside = (report[name]["p99_ms"] for name in ("submit_alone", "submit_beside_export"))
        lines += [
            "",
            f"Submits at level `master`, 50 a second: p99 {alone} ms alone, {beside} ms beside exports of "
            f"{report['export_rows']:,} jobs that follow each other "
            f"({report['submit_p99_over_alone']} times, the median of turns). Spark runs "
            f"{report.get('spark_runs', 'on the same two cores')}.",
        ]
    return lines


def of_busy_workers(report: Report) -> list[str]:
    """Waits of jobs on the loop, alone and while the cores compute in worker processes."""
    names = {"alone": "alone", "beside_busy_workers": f"beside {report['workers']} worker processes that compute"}
    heads = (f"submit to start, milliseconds, {report['jobs_per_second']} jobs/s on the loop", "p50", "p99", "max")
    lines = table(
        heads,
        [(title, *(report[name][f"{which}_ms"] for which in ("p50", "p99", "max"))) for name, title in names.items()],
    )
    share, rate = report["work_share_of_bare"], report["work_jobs_per_second"]
    return [
        *lines,
        "",
        f"The worker processes did {rate:,} jobs of one millisecond a second, {share:.0%} of the bare loop.",
    ]


def of_stream(report: Report) -> list[str]:
    """Both ends of the streams of Spark."""
    names = {
        "sink": "row of a streaming query to the start of its job",
        "source": "end of a job to the reader of the stream",
    }
    heads = (f"milliseconds at {report['jobs_per_second']:,} jobs/s, a micro-batch a second", "p50", "p99", "max")
    return table(
        heads,
        [(title, *(report[name][f"{which}_ms"] for which in ("p50", "p99", "max"))) for name, title in names.items()],
    )


SECTIONS: dict[str, tuple[str, Callable[[Report], list[str]]]] = {
    "drain": ("End to end", of_drain),
    "peers": ("Beside others", of_peers),
    "peers_cpu": ("Processor time beside others", of_peers_cpu),
    "peers_kinds": ("Kinds of work beside others", of_peer_kinds),
    "peers_latency": ("Latency beside others", of_peer_latency),
    "peers_rescue": ("A killed worker beside others", of_peer_rescue),
    "submit": ("Submit", of_submit),
    "calls": ("Typed calls", of_calls),
    "work": ("Kinds of work", of_work),
    "busy_workers": ("Jobs on the loop beside busy worker processes", of_busy_workers),
    "first_steps": ("First steps", of_first_steps),
    "latency": ("Latency", of_latency),
    "lateness": ("Fires of schedules at one moment", of_small),
    "lateness_spread": ("Start of jobs spread over a span", of_small),
    "onboard": ("From the master into a bucket", of_onboard),
    "flow": ("Chains, batches, tenants, limits", of_flow),
    "web": ("Pages of a large cluster", of_web),
    "bulk": ("A bulk retry", of_bulk),
    "bucket_map": ("The map of buckets", of_bucket_map),
    "hints": ("A second of the leader", of_hints),
    "pipeline": ("The data pipeline", of_pipeline),
    "stream": ("Streams of Spark", of_stream),
    "growth": ("Cost as it grows", of_growth),
    "fallback": ("When rows exist already", of_small),
    "safety_cost": ("What the safety costs", of_small),
    "idle": ("Idle", of_small),
    "memory": ("Memory", of_small),
    "fleet_costs": ("What one call costs", of_fleet_costs),
    "fleet": ("A fleet, simulated", of_fleet),
}
_COMMANDS = {
    "fleet_costs": "fleet --measure",
    "lateness_spread": "master.lateness --jobs 16667",
    **{name: f"agent.{name}" for name in ("busy_workers", "idle", "memory", "rescue")},
    **{name: f"master.{name}" for name in ("bucket_map", "fallback", "growth", "hints", "lateness", "move")},
    **{f"peers_{part}": f"peers --with all --part {part}" for part in ("cpu", "kinds", "latency", "rescue")},
}


def command_of(benchmark: str) -> str:
    """What is typed after ``python -m benchmarks.`` for the report of that name."""
    return _COMMANDS.get(benchmark, benchmark)


def text(results: Path, plots: Path) -> str:
    """Every section whose report is there."""
    lines = [BEGIN, ""]
    for name, (title, section) in SECTIONS.items():
        path = results / f"{name}.json"
        if not path.is_file():
            continue
        report = json.loads(path.read_text(encoding="utf-8"))
        machine = report["machine"]
        taken = f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GB, Python {machine['python']}"
        lines += [f"### {title}", "", *section(report), ""]
        drawn = sorted(path for path in plots.glob(f"{name}*.svg"))
        lines += [f"![{path.stem}](performance/{path.name})" for path in drawn]
        busy = f"other work kept {report['other_work_cores']:g} cores busy"
        where = f"commit {report['commit']}, {report['taken_at'][:10]}, {taken}; {busy}"
        lines += ["", f"*`python -m benchmarks.{command_of(name)}`, {where}.*", ""]
    return "\n".join([*lines, END])


def sizing_text(results: Path) -> str:
    """The table of the guide to sizes."""
    path = results / "sizing.json"
    if not path.is_file():
        return "\n".join([BEGIN, END])
    report = json.loads(path.read_text(encoding="utf-8"))
    where = f"simulated from unit costs; commit {report['commit']}, {report['taken_at'][:10]}"
    compared = table(
        ("agent processes on two cores", "CPU of a job, measured, us", "simulated, us", "simulated / measured"),
        [(one["processes"], one["measured_us"], one["simulated_us"], one["ratio"]) for one in report["processes"]],
    )
    lines = [*of_sizing(report), "", *compared]
    return "\n".join([BEGIN, "", *lines, "", f"*`python -m benchmarks.fleet --sizing`, {where}.*", "", END])


def rewritten(page: str, figures: str) -> str:
    """The page with its figures replaced."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + figures + after
