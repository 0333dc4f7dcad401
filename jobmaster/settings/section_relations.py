"""Relations between sections, checked on a complete configuration.

A certain mistake is a problem. A value that is probably unintended is a warning.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from jobmaster.model.errors import InputError
from jobmaster.model.job import Priority
from jobmaster.rules.access import READING
from jobmaster.settings.model import AgentMode, AgentSettings, BucketCounts, ClusterSettings, JobLimitSettings
from jobmaster.settings.problems import Origin, Problem
from jobmaster.settings.schema import suggest
from jobmaster.settings.urls import UrlError, check_store_url, parse_dsn
from jobmaster.settings.yaml_tree import join_path
from jobmaster.units import format_duration


@dataclass(slots=True)
class Findings:
    """Problems and warnings of one run."""

    place_of: Callable[..., Origin]
    """Origin of the first of some paths that was written."""
    written: Callable[[str], bool]
    """True for a path that was written."""
    problems: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)


def check_relations(settings: ClusterSettings, findings: Findings) -> None:
    """Run all checks. Each finding names the origin of the key to change."""
    for name, agent in settings.agents.items():
        _check_store(name, agent, settings, findings)
        _check_buckets(name, agent, findings)
        _check_lane_slots(name, agent, findings)
    _check_served(settings, findings)
    _check_handlers(settings, findings)
    if settings.schedules or settings.zone != ClusterSettings().zone:
        _check_schedules(settings, findings)
    if settings.job_limits:
        _check_job_limits(settings, findings)
    _check_retention(settings, findings)
    _check_urls(settings, findings)
    _check_passwords(settings, findings)
    _check_store_urls(settings, findings)
    _check_web(settings, findings)


def _check_retention(settings: ClusterSettings, findings: Findings) -> None:
    """A range must be old enough that no producer can still make ids of it."""
    path, after, skew = (
        "retention.jobs.after",
        settings.retention.jobs.after_seconds,
        settings.limits.clock_skew_seconds,
    )
    if after is not None and after < 2 * skew:
        message = f"jobs can leave when they are {format_duration(2 * skew)} old, not {format_duration(after)}"
        hint = f"producers may be {format_duration(skew)} off (limits.clock_skew); give at least twice that"
        findings.problems.append(Problem(findings.place_of(path), path, message, hint))


def _check_urls(settings: ClusterSettings, findings: Findings) -> None:
    """Refuse a URL that the drivers would read in another sense. No message quotes it: any part may belong to a password."""
    checks: list[tuple[str, str | None, Callable[[str], object]]] = [
        ("master.dsn", settings.master.dsn, parse_dsn),
        ("master.read_dsn", settings.master.read_dsn, parse_dsn),
    ]
    checks += [
        (f"{join_path('stores', name)}.url", store.url, check_store_url) for name, store in settings.stores.items()
    ]
    for path, url, check in checks:
        try:
            if url is not None:
                check(url)
        except UrlError as error:
            message = f"this URL cannot be used: {error.message}"
            findings.problems.append(Problem(findings.place_of(path), path, message, error.hint))


def _check_passwords(settings: ClusterSettings, findings: Findings) -> None:
    """A password has one source."""
    servers = [("master", "dsn", settings.master.dsn, settings.master.password_command)]
    servers += [
        (join_path("stores", name), "url", store.url, store.password_command) for name, store in settings.stores.items()
    ]
    for section, key, url, command in servers:
        if command is None:
            continue
        path = join_path(section, "password_command")
        if url is None:
            message, hint = f"{section}.{key} names no server", "the embedded servers have passwords of their own"
        elif ":" in url.partition("://")[2].rpartition("@")[0]:
            message, hint = f"{section}.{key} has a password, too", "leave one of them out"
        else:
            continue
        findings.problems.append(Problem(findings.place_of(path), path, message, hint))


def _check_store(name: str, agent: AgentSettings, settings: ClusterSettings, findings: Findings) -> None:
    if agent.store in settings.stores:
        return
    path = join_path(join_path("agents", name), "store")
    stated = findings.written(path)
    message = f'no store is called "{agent.store}"' + ("" if stated else ", which is the default of this key")
    hint = suggest(agent.store, settings.stores) or f"stores: {', '.join(settings.stores) or 'none'}"
    findings.problems.append(Problem(findings.place_of(path), path, message, hint))


def _check_buckets(name: str, agent: AgentSettings, findings: Findings) -> None:
    path = join_path("agents", name)
    # `config show -o yaml` writes the default counts beside lanes, so only other counts are a mistake.
    if agent.lanes and agent.buckets != BucketCounts() and findings.written(f"{path}.buckets"):
        findings.problems.append(
            Problem(
                findings.place_of(f"{path}.buckets"),
                f"{path}.buckets",
                "buckets and lanes are both given, and buckets would not count",
                f"move these counts to {path}.lanes.default",
            )
        )
    owns = any(counts.of(priority) for counts in agent.bucket_counts().values() for priority in Priority)
    if not owns and _owns_buckets(agent):
        message = f"mode {agent.mode} with no bucket at all: this agent never runs a job"
        findings.warnings.append(Problem(findings.place_of(f"{path}.buckets", path), path, message))


def _check_lane_slots(name: str, agent: AgentSettings, findings: Findings) -> None:
    lanes = {*agent.bucket_counts(), *agent.helps}
    for lane in agent.lane_slots:
        if lane not in lanes:
            path = join_path(join_path("agents", name), "lane_slots")
            message = f'this agent never has a bucket in lane "{lane}", so these slots do not count'
            hint = suggest(lane, lanes) or f"lanes here: {', '.join(sorted(lanes))}"
            place = findings.place_of(join_path(path, lane), path)
            findings.warnings.append(Problem(place, join_path(path, lane), message, hint))


def _owns_buckets(agent: AgentSettings) -> bool:
    return agent.mode in {AgentMode.FULL, AgentMode.EXECUTION}


def _check_served(settings: ClusterSettings, findings: Findings) -> None:
    """Warn when no agent serves the lane and priority of ``jobs``, where jobs without their own go."""
    lane, priority = settings.jobs.lane, settings.jobs.priority
    counts = [agent.bucket_counts() for agent in settings.agents.values() if _owns_buckets(agent)]
    served = {name for lanes in counts for name in lanes}
    if lane not in served:
        message = f'no agent here has buckets in lane "{lane}": such jobs wait in the master'
        hint = suggest(lane, served) or f"lanes served: {', '.join(sorted(served)) or 'none'}"
        place = findings.place_of("jobs.lane", "agents")
        findings.warnings.append(Problem(place, "jobs.lane", message, hint))
    elif not any(lanes[lane].of(Priority.parse(priority)) for lanes in counts if lane in lanes):
        message = f'no agent here has buckets of priority "{priority}" in lane "{lane}": such jobs wait in the master'
        findings.warnings.append(Problem(findings.place_of("jobs.priority", "agents"), "jobs.priority", message))


def _check_handlers(settings: ClusterSettings, findings: Findings) -> None:
    seen: dict[str, int] = {}
    for at, handler in enumerate(settings.handlers):
        if handler in seen:
            path = f"handlers[{at}]"
            message = f'"{handler}" is listed twice (first as handlers[{seen[handler]}])'
            findings.warnings.append(Problem(findings.place_of(path, "handlers"), path, message))
        seen.setdefault(handler, at)


def _check_schedules(settings: ClusterSettings, findings: Findings) -> None:
    # Imported here: most configurations have no schedule, and the supervisor stays small.
    from jobmaster.settings.schedules import declared_schedule, schedule_defaults, zone_problem

    if wrong := zone_problem(settings.zone):
        findings.problems.append(Problem(findings.place_of("zone"), "zone", wrong.message, wrong.hint))
        return
    for name, schedule in settings.schedules.items():
        path = join_path("schedules", name)
        try:
            declared_schedule(name, schedule).resolve(schedule_defaults(settings))
        except InputError as error:
            findings.problems.append(Problem(findings.place_of(path), path, error.message, error.hint))


def _check_job_limits(settings: ClusterSettings, findings: Findings) -> None:
    from jobmaster.settings.job_limits import check_job_limit  # imported here: as the schedules

    for name, limit in settings.job_limits.items():
        path = join_path("job_limits", name)
        if limit == JobLimitSettings() and any(findings.written(f"{path}.{key}") for key in limit.__struct_fields__):
            continue  # a value that cannot be read was reported
        try:
            check_job_limit(name, limit)
        except InputError as error:
            findings.problems.append(Problem(findings.place_of(path), path, error.message, error.hint))


def _check_store_urls(settings: ClusterSettings, findings: Findings) -> None:
    seen: dict[str, str] = {}
    for name, store in settings.stores.items():
        if store.url is not None and store.url in seen:
            path = f"{join_path('stores', name)}.url"
            message = f'the same server as store "{seen[store.url]}": losing it loses both'
            findings.warnings.append(Problem(findings.place_of(path), path, message))
        elif store.url is not None:
            seen[store.url] = name


def _check_web(settings: ClusterSettings, findings: Findings) -> None:
    for name, token in settings.web.tokens.items():
        path = join_path("web.tokens", name)
        if (token.token is None) == (token.sha256 is None):
            wrong = (
                "both token and sha256 are given" if token.token is not None else "neither token nor sha256 is given"
            )
            hint = f"`jobmaster web token {name}` makes a token and its sha256"
            findings.problems.append(Problem(findings.place_of(path), path, wrong, hint))
    changing = [scope.value for scope in settings.web.anonymous if scope not in READING]
    if changing:
        findings.problems.append(
            Problem(
                findings.place_of("web.anonymous"),
                "web.anonymous",
                f"an anonymous caller can only read, not {', '.join(changing)}",
                f"there are {', '.join(sorted(READING))}; give web.tokens for the others",
            )
        )
