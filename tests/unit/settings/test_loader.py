"""A file becomes settings, or a complete list of its problems with their places."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from jobmaster.model.job import Durability, OnFull, Priority
from jobmaster.settings.loader import LoadedSettings, load_settings
from jobmaster.settings.model import AgentMode, BucketCounts, ClusterSettings
from jobmaster.settings.problems import InvalidSettings, OriginKind

Load = Callable[..., LoadedSettings]
Complain = Callable[..., list[str]]

FULL = """\
cluster: prod
master: {dsn: "postgresql://app:pw@db/jobs", pool_size: 8, connect_timeout: 2}
stores:
  main:
    url: redis://host:6379/0
    high_water: 64MiB
agents:
  payroll:
    mode: execution
    store: main
    lanes:
      payroll: {critical: 5, high: 4, medium: 3, low: 2, very_low: 1}
      default: {medium: 7}
  small: {store: main, buckets: {critical: 0}}
handlers: [acme.jobs, "acme.more:app"]
leases: {lease: 15s, renew: 1500ms}
jobs: {timeout: 1h30m, durability: master, on_full: spill, backoff_factor: 3, lane: payroll}
limits: {args: 1MB}
observability: {metrics_port: 0}
"""


def test_without_any_file_everything_has_its_default(load: Load) -> None:
    loaded = load(None)
    assert loaded.settings == ClusterSettings()
    assert loaded.source is None
    assert loaded.warnings == ()
    assert loaded.origin_of("leases.lease").kind is OriginKind.DEFAULT


def test_every_kind_of_value_is_read(load: Load) -> None:
    loaded = load(FULL)
    settings = loaded.settings
    assert loaded.warnings == ()
    assert settings.cluster == "prod"
    assert settings.master.dsn == "postgresql://app:pw@db/jobs"
    assert settings.master.connect_timeout_seconds == 2.0
    assert settings.stores["main"].high_water_bytes == 64 * 2**20
    assert list(settings.agents) == ["payroll", "small"]
    assert settings.agents["payroll"].mode is AgentMode.EXECUTION
    assert settings.agents["payroll"].lanes["payroll"] == BucketCounts(critical=5, high=4, medium=3, low=2, very_low=1)
    assert settings.agents["payroll"].lanes["default"] == BucketCounts(medium=7)
    assert settings.agents["small"].buckets.critical == 0
    assert settings.handlers == ["acme.jobs", "acme.more:app"]
    assert settings.leases.lease_seconds == 15.0
    assert settings.leases.renew_seconds == 1.5
    assert settings.jobs.timeout_seconds == 5400.0
    assert settings.jobs.durability is Durability.MASTER
    assert settings.jobs.on_full is OnFull.SPILL
    assert settings.jobs.backoff_factor == 3.0
    assert isinstance(settings.jobs.backoff_factor, float)
    assert settings.limits.args_bytes == 1_000_000
    assert settings.observability.metrics_port == 0


def test_what_is_loaded_has_the_types_of_the_structs(load: Load) -> None:
    settings = load(FULL).settings
    assert msgspec.convert(msgspec.to_builtins(settings), ClusterSettings) == settings


def test_every_written_leaf_has_its_place(load: Load) -> None:
    origins = load(FULL).origins
    assert str(origins["cluster"]) == "cluster.yaml:1:10"
    assert str(origins["master.pool_size"]) == "cluster.yaml:2:57"
    assert str(origins["agents.payroll.lanes.default.medium"]) == "cluster.yaml:13:25"
    assert str(origins["handlers[1]"]) == "cluster.yaml:15:23"
    assert "leases.grace" not in origins


@pytest.mark.parametrize(
    "text", ["", "# nothing\n", "---\n", "---\n...\n", "leases:\nstores:\nagents:\n", "null\n", "{}"]
)
def test_an_empty_file_or_section_means_defaults(load: Load, text: str) -> None:
    assert load(text).settings == ClusterSettings()


def test_five_different_mistakes_are_all_listed_with_their_places(complain: Complain) -> None:
    problems = complain(
        "cluster: prod\n"
        "master: {pool_sise: 4}\n"
        "leases:\n"
        "  lease: 10 parsecs\n"
        "jobs:\n"
        "  timeout: 1:30\n"
        "  lane: default\n"
        "  lane: payroll\n"
        "agents:\n"
        "  one: {store: defalt, buckets: {high: -1}}\n"
    )
    assert problems == [
        'cluster.yaml:2:10: master.pool_sise: unknown key "pool_sise" (did you mean "pool_size"?)',
        "cluster.yaml:4:10: leases.lease: expected a duration such as 30s, 5m, 250ms, 1h30m or a number of seconds, "
        'got "10 parsecs"',
        "cluster.yaml:6:12: jobs.timeout: unquoted 1:30 is ambiguous: YAML 1.1 reads it as a number to base 60 "
        "(write a duration such as 90s or 1h30m, or quote it)",
        'cluster.yaml:8:3: jobs.lane: duplicate key "lane" (first given at 7:3; keep one)',
        'cluster.yaml:10:16: agents.one.store: no store is called "defalt" (did you mean "default"?)',
        'cluster.yaml:10:40: agents.one.buckets.high: expected a whole number of at least 0, got "-1"',
    ]


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("clutser: x", "1:1", 'unknown key "clutser" (did you mean "cluster"?)'),
        ("leases: {lease_seconds: 3}", "1:10", '(write "lease", the unit belongs to the value)'),
        ("lease: 10s", "1:1", '(did you mean "leases"?)'),
        ("master: {tombstone: 3m}", "1:10", '("tombstone" is a key of leases)'),
        ("partitions: {qqqqq: 1}", "1:14", "(known here: span, ahead_days)"),
        ("cluster: [a]", "1:10", ", the first a letter or digit, got a list"),
        ("cluster: Prod", "1:10", 'got "Prod"'),
        ("cluster: 12", "1:10", "expected text, got 12, which is a number (quote it if the text is meant)"),
        ("cluster: true", "1:10", "expected text, got true, which is a boolean"),
        ("cluster:", "1:9", "a value is missing"),
        ('cluster: ""', "1:10", "a value is missing"),
        ("master: 5", "1:9", 'expected a mapping (key: value), got "5"'),
        ("master: [a]", "1:9", "expected a mapping (key: value), got a list"),
        ("- a", "1:1", "expected a mapping (key: value), got a list"),
        ("hello", "1:1", 'expected a mapping (key: value), got "hello"'),
        ("handlers: acme", "1:11", 'expected a list, got "acme" (write [one, two] or - one a line)'),
        ("handlers: [a b]", "1:12", "expected package.module or package.module:attribute"),
        ("handlers: [1]", "1:12", "expected text, got 1"),
        ("handlers: [..a]", "1:12", "expected package.module"),
        ("handlers: [{a: 1}]", "1:12", "got a mapping"),
        ("master: {pool_size: many}", "1:21", 'expected a whole number of at least 1, got "many"'),
        ('master: {pool_size: "4"}', "1:21", "(write 4 without quotes)"),
        ("master: {pool_size: 4.5}", "1:21", "expected a whole number"),
        ("master: {pool_size: 0}", "1:21", "of at least 1"),
        ("master: {pool_size: 99999999999999999999}", "1:21", "expected a whole number"),
        ("master: {pool_size: null}", "1:21", "a value is missing"),
        ("master: {schema: Bad-Name}", "1:18", "got \"Bad-Name\""),
        ("master: {dsn: mysql://db}", "1:15", "expected a URL such as postgresql://"),
        ("stores: {default: {url: http://x}}", "1:25", "expected a URL such as redis://"),
        ("stores: {Main: {}, default: {}}", "1:10", "this name does not fit"),
        ("thresholds: {transfer_batch: 0}", "1:30", "a whole number from 1 to 10000"),
        ("leases: {lease: 100ms}", "1:17", "from 200ms to 10m"),
        ("leases: {lease: -5s}", "1:17", "(it cannot be negative)"),
        ("leases: {lease: true}", "1:17", "expected a duration"),
        ("leases: {lease: 5min}", "1:17", '(did you mean "5m"?)'),
        ("master: {connect_timeout: 0}", "1:27", "above 0s"),
        ("limits: {args: 128K}", "1:16", '(did you mean "128KiB"?)'),
        ("jobs: {durability: mater}", "1:20", '(did you mean "master"?)'),
        ("jobs: {priority: urgent}", "1:18", "expected one of very_low, low, medium, high, critical"),
        ("jobs: {backoff_jitter: 1.5}", "1:24", "a number from 0 to 1"),
        ("jobs: {backoff_factor: 1e400}", "1:24", "a number of at least 1"),
        ("agents: {1: {}}", "1:10", 'a key must be text, "1" is a number (quote it if it is meant as a name)'),
        ("observability: {metrics_port: 70000}", "1:31", "from 0 to 65535"),
        ("a\u0001: 1", "1:2", "U+0001 is not allowed"),
        ('cluster: "a\\0b"', "1:10", "control character"),
        ('cluster: "\\ud800"', "1:10", "half a character"),
        ('cluster: "\\UFFFFFFFF"', "1:8", "not valid YAML"),
    ],
)  # fmt: skip
def test_one_mistake_is_one_line_with_its_place(complain: Complain, text: str, place: str, message: str) -> None:
    (problem,) = complain(text)
    assert problem.startswith(f"cluster.yaml:{place}: ")
    assert message in problem


@pytest.mark.parametrize(
    ("word", "message"),
    [
        *[(word, "boolean") for word in ("yes", "no", "on", "off", "y", "n", "Yes", "NO", "On", "OFF", "Y")],
        ("1:30", "base 60"),
        ("-12:30:45", "base 60"),
        ("010", "octal"),
        ("0777", "octal"),
        ("08", "octal"),
        ("0x1F", "not every reader"),
        ("0o17", "not every reader"),
        ("0b11", "not every reader"),
        ("1_000", "underscores"),
        ("2024-01-31", "a date"),
        ("2024-01-31T10:00:00Z", "a date"),
        (".inf", "no finite number"),
        ("-.INF", "no finite number"),
        (".nan", "no finite number"),
        ("=", "value tag"),
    ],
)
@pytest.mark.parametrize("form", ["cluster: {}", "leases: {{lease: {}}}", "{}: 1", "handlers: [{}]"])
def test_unquoted_text_on_which_yaml_readers_disagree_is_refused(
    complain: Complain, form: str, word: str, message: str
) -> None:
    (problem,) = complain(form.format(word))
    assert "is ambiguous" in problem
    assert message in problem


def test_the_same_text_in_quotes_is_text(load: Load) -> None:
    assert load('cluster: "no"').settings.cluster == "no"
    assert load("stores: {'1': {}, default: {}}").settings.stores.keys() == {"1", "default"}


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("a: &x 1\nb: *x\n", ["1:4", "2:4", "1:1", "2:1"]),
        ("master: &m {pool_size: 1}\njobs:\n  <<: *m\n", ["1:9", "3:3", "3:7"]),
        ("master: !!python/object/apply:os.system [ls]\n", ["1:9", "1:9"]),
        ("cluster: !!str x\n", ["1:10"]),
        ("cluster: ! x\n", ["1:10"]),
        ("? [a]\n: 1\n", ["1:3"]),
        ("{1: a, null: b, true: c}\n", ["1:2", "1:8", "1:17"]),
        ("cluster: a\n---\ncluster: b\n", ["2:1"]),
    ],
)
def test_anchors_aliases_tags_and_odd_keys_are_refused(complain: Complain, text: str, places: list[str]) -> None:
    found = [":".join(problem.split(":")[1:3]) for problem in complain(text)]
    assert sorted(found) == sorted(places)


def test_a_duplicate_key_names_both_places_at_every_depth(complain: Complain) -> None:
    (problem,) = complain("agents:\n  a:\n    buckets:\n      high: 1\n      low: 1\n      'high': 2\n")
    assert problem == ('cluster.yaml:6:7: agents.a.buckets.high: duplicate key "high" (first given at 4:7; keep one)')


@pytest.mark.parametrize(
    ("text", "place", "hint"),
    [
        ("master:\n\tdsn: x\n", "2:1", "a tab stands where YAML wants spaces"),
        ("cluster: a: b\n", "1:11", "check the indentation"),
        ("cluster: 'a\n", "2:1", "a closing quote is missing"),
        ("master: {dsn: ${X}}\n", "1:16", "quote ${...}"),
        ("master:\n  dsn: @x\n", "2:8", "starts with @"),
        ("handlers: [a\n", "2:1", "a bracket or brace is not closed"),
        ("cluster: a\n b\nmaster\n", "4:1", "a colon is missing"),
    ],
)
def test_a_syntax_error_has_a_place_and_a_hint(complain: Complain, text: str, place: str, hint: str) -> None:
    (problem,) = complain(text)
    assert problem.startswith(f"cluster.yaml:{place}: this is not valid YAML: ")
    assert hint in problem


def test_problems_before_a_syntax_error_are_reported_too(complain: Complain) -> None:
    problems = complain("jobs: {lane: no}\nmaster: {a: b: c}\n", {"JOBMASTER_NONSENSE": "1"}, ["bad"])
    assert ["1:14" in problems[0], "2:14" in problems[1]] == [True, True]
    assert "JOBMASTER_NONSENSE" in problems[2]
    assert "expected KEY=VALUE" in problems[3]


def test_jobs_may_not_leave_while_producers_can_still_make_ids_of_their_time(complain: Complain) -> None:
    assert complain("retention:\n  jobs: {after: 5m}\nlimits: {clock_skew: 5m}\n") == [
        "cluster.yaml:2:17: retention.jobs.after: jobs can leave when they are 10m old, not 5m (producers may be 5m off "
        "(limits.clock_skew); give at least twice that)"
    ]


def test_relations_are_reported_at_the_number_that_was_written(complain: Complain) -> None:
    problems = complain("leases:\n  renew: 5s\n  tombstone: 5s\n")
    assert problems == [
        "cluster.yaml:2:10: leases: leases.renew (5s) must be at most a third of leases.lease (10s)",
        "cluster.yaml:3:14: leases: leases.tombstone (5s) must be more than twice leases.bucket_map (10s)",
    ]


def test_exactly_a_third_is_a_third(load: Load) -> None:
    """In floats 0.4 * 3 is more than 1.2."""
    text = "leases: {lease: 1.2s, renew: 0.4s, leader_lease: 2.1s, leader_renew: 0.7s}\n"
    assert load(text).settings.leases.renew_seconds == 0.4


def test_a_relation_is_not_checked_on_a_number_that_could_not_be_read(complain: Complain) -> None:
    (problem,) = complain("leases: {lease: 1 hour, renew: 5m}\n")
    assert "leases.lease" in problem


def test_an_agent_must_name_a_store_that_exists_also_by_default(complain: Complain) -> None:
    (problem,) = complain("stores: {main: {}}\nagents:\n  a:\n    slots: 3\n")
    assert problem == (
        'cluster.yaml:3:3: agents.a.store: no store is called "default", which is the default of this key (stores: main)'
    )


def test_a_store_that_could_not_be_read_is_not_reported_as_missing(complain: Complain) -> None:
    (problem,) = complain("stores: {main: {}}\nagents: {a: {store: 5}}\n")
    assert "agents.a.store: expected text, got 5" in problem


def test_nothing_is_reported_as_missing_in_a_file_that_could_not_be_read_to_its_end(complain: Complain) -> None:
    (problem,) = complain("stores: {main: {}}\nagents: {a: b: c}\n", {"JOBMASTER_AGENTS__A__STORE": "main"})
    assert "this is not valid YAML" in problem


def test_buckets_beside_lanes_are_refused_because_they_would_not_count(complain: Complain) -> None:
    (problem,) = complain("agents: {default: {buckets: {high: 3}, lanes: {default: {}}}}")
    assert "agents.default.buckets: buckets and lanes are both given" in problem
    assert "agents.default.lanes.default" in problem


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ("jobs: {lane: payroll}", '1:14: warning: jobs.lane: no agent here has buckets in lane "payroll"'),
        ("jobs: {priority: high}\nagents: {a: {buckets: {high: 0}}}", '1:18: warning: jobs.priority: no agent here'),
        ("agents: {a: {mode: leader}}", "1:1: warning: jobs.lane: no agent here"),
        ("handlers: [a, b, a]", '1:18: warning: handlers[2]: "a" is listed twice'),
        (
            "stores: {default: {url: 'redis://h/0'}, b: {url: 'redis://h/0'}}",
            '1:50: warning: stores.b.url: the same server as store "default"',
        ),
    ],
)  # fmt: skip
def test_a_probable_mistake_is_a_warning(load: Load, text: str, warning: str) -> None:
    (found,) = load(text).warnings
    assert found.as_warning().startswith(f"cluster.yaml:{warning}")


def test_slots_of_a_lane_without_buckets_are_a_warning(load: Load) -> None:
    (warning,) = load("agents: {a: {lane_slots: {defautl: {low: 2}}}}").warnings
    assert 'agents.a.lane_slots.defautl: this agent never has a bucket in lane "defautl"' in str(warning)
    assert "default" in str(warning.hint)
    assert load("agents: {a: {lane_slots: {default: {low: 2}, x: {low: 1}}, helps: [x]}}").warnings == ()


def test_slots_of_a_lane_are_stronger_than_those_of_a_priority(load: Load) -> None:
    text = (
        "agents: {a: {slots: 9, priority_slots: {low: 2, high: 20}, lane_slots: {reports: {low: 3}}, helps: [reports]}}"
    )
    agent = load(text).settings.agents["a"]
    slots = {(lane, level): agent.slots_of(lane, level) for lane in ("default", "reports") for level in Priority}
    assert slots == {
        ("default", 1): 9, ("default", 2): 2, ("default", 3): 9, ("default", 4): 20, ("default", 5): 9,
        ("reports", 1): 9, ("reports", 2): 3, ("reports", 3): 9, ("reports", 4): 20, ("reports", 5): 9,
    }  # fmt: skip


@pytest.mark.parametrize("slots", ["0", "-1", "1.5", "many"])
def test_a_bucket_without_slots_is_refused(load: Load, slots: str) -> None:
    with pytest.raises(InvalidSettings, match=r"agents\.a\.priority_slots\.low"):
        load(f"agents: {{a: {{priority_slots: {{low: {slots}}}}}}}")


def test_an_agent_without_buckets_is_a_warning(load: Load) -> None:
    text = "agents: {a: {buckets: {critical: 0, high: 0, medium: 0, low: 0, very_low: 0}}, b: {}}"
    (warning,) = load(text).warnings
    assert "agents.a: mode full with no bucket at all" in str(warning)


# --- which file -------------------------------------------------------------------------------------------------------


def test_the_search_prefers_the_argument_then_the_variable_then_two_names(here: Path) -> None:
    for name in ("arg", "var", "jobmaster", "cluster"):
        Path(f"{name}.yaml").write_text(f"cluster: {name}")
    env = {"JOBMASTER_CONFIG": "var.yaml"}
    assert load_settings(Path("arg.yaml"), env).settings.cluster == "arg"
    assert load_settings(None, env).settings.cluster == "var"
    assert load_settings(None, {"JOBMASTER_CONFIG": ""}).settings.cluster == "jobmaster"
    both = load_settings(None, {})
    assert (both.settings.cluster, both.source) == ("jobmaster", Path("jobmaster.yaml"))
    assert "cluster.yaml lies beside jobmaster.yaml and is not read" in str(both.warnings[0])
    Path("jobmaster.yaml").unlink()
    assert load_settings(None, {}).settings.cluster == "cluster"


def test_the_environment_is_that_of_the_process_unless_another_is_given(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer without arguments uses the same cluster as agents and commands started beside it."""
    monkeypatch.setenv("JOBMASTER_CLUSTER", "other")
    monkeypatch.setenv("NAME", "put-in")
    assert load("cluster: mine").settings.cluster == "mine"
    assert load_settings(env={}).settings.cluster == "mine"
    assert load_settings().settings.cluster == "other"
    assert load_settings("cluster.yaml").settings == load_settings().settings
    monkeypatch.delenv("JOBMASTER_CLUSTER")
    Path("named.yaml").write_text("cluster: ${NAME}\n")
    assert load_settings("named.yaml").settings.cluster == "put-in"
    monkeypatch.setenv("JOBMASTER_CONFIG", "named.yaml")
    assert load_settings().settings.cluster == "put-in"


def test_the_error_has_the_count_and_the_warnings(load: Load) -> None:
    with pytest.raises(InvalidSettings) as caught:
        load("jobs: {lane: x}\nfoo: 1\nbar: 2\n")
    assert str(caught.value).startswith("the configuration has 2 problems: cluster.yaml:2:1: foo: ")
    assert [warning.path for warning in caught.value.warnings] == ["jobs.lane"]
    assert caught.value.details[0].as_dict()["line"] == 2
