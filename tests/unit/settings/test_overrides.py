"""Environment and command line over the file: order, reading of their text, refusals."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from jobmaster.settings.loader import LoadedSettings
from jobmaster.settings.model import BucketCounts
from jobmaster.settings.overrides import OTHER_VARIABLES, known_variables

Load = Callable[..., LoadedSettings]
Complain = Callable[..., list[str]]


def test_the_command_line_wins_over_the_environment_and_that_over_the_file(load: Load) -> None:
    text, env, overrides = "leases: {lease: 11s}", {"JOBMASTER_LEASES__LEASE": "12s"}, ["leases.lease=13s"]
    everything = load(text, env, overrides)
    assert everything.settings.leases.lease_seconds == 13.0
    assert str(everything.origins["leases.lease"]) == "command line --set leases.lease"
    assert load(text, env).settings.leases.lease_seconds == 12.0
    assert str(load(text, env).origins["leases.lease"]) == "environment JOBMASTER_LEASES__LEASE"
    assert load(text).settings.leases.lease_seconds == 11.0
    assert load("").settings.leases.lease_seconds == 10.0


def test_a_single_key_leaves_its_neighbours_in_the_file_alone(load: Load) -> None:
    text = "agents: {payroll: {slots: 7, buckets: {high: 3}}}"
    agent = load(text, {"JOBMASTER_AGENTS__PAYROLL__BUCKETS__LOW": "9"}).settings.agents["payroll"]
    assert (agent.slots, agent.buckets) == (7, BucketCounts(high=3, low=9))


def test_without_a_file_both_forms_work(load: Load) -> None:
    env = {"JOBMASTER_CLUSTER": "prod", "JOBMASTER_MASTER__DSN": "postgresql://a@b/c", "PATH": "/bin", "OTHER": "x"}
    loaded = load(None, env, ["stores.default.url=redis://h/0", "jobs.timeout=90"])
    assert loaded.settings.cluster == "prod"
    assert loaded.settings.master.dsn == "postgresql://a@b/c"
    assert loaded.settings.stores["default"].url == "redis://h/0"
    assert loaded.settings.jobs.timeout_seconds == 90.0
    assert loaded.warnings == ()


def test_the_text_of_a_leaf_is_taken_as_it_stands(load: Load) -> None:
    text = "/x:#'\"{[*&! ${HOME} %@db/jobs"
    assert load(None, {"JOBMASTER_DATA_DIR": text}).settings.data_dir == text
    assert load(None, {"JOBMASTER_CLUSTER": "no"}).settings.cluster == "no"
    assert load(None, {"JOBMASTER_CLUSTER": "123"}).settings.cluster == "123"
    assert load(None, {}, ["master.dsn=postgresql://a:b=c@d"]).settings.master.dsn == "postgresql://a:b=c@d"


@pytest.mark.parametrize("text", ["", "null"])
def test_nothing_switches_an_optional_key_off(load: Load, text: str) -> None:
    settings = load("master: {dsn: postgresql://x}", {"JOBMASTER_MASTER__DSN": text}).settings
    assert settings.master.dsn is None


def test_lists_and_sections_have_their_forms(load: Load) -> None:
    env = {"JOBMASTER_HANDLERS": "a.b, c.d", "JOBMASTER_AGENTS__DEFAULT__BUCKETS": "{high: 4}"}
    loaded = load("handlers: [x]\nagents: {default: {buckets: {low: 9}}}", env)
    assert loaded.settings.handlers == ["a.b", "c.d"]
    assert loaded.settings.agents["default"].buckets == BucketCounts(high=4)
    assert str(loaded.origins["handlers[1]"]) == "environment JOBMASTER_HANDLERS"
    assert load(None, {}, ["handlers=[a, 'b']"]).settings.handlers == ["a", "b"]
    assert load("handlers: [x]", {}, ["handlers="]).settings.handlers == []
    assert load(None, {}, ["agents={one: {slots: 3}}", "agents.one.slots=4"]).settings.agents["one"].slots == 4


def test_sections_come_before_the_keys_inside_them(load: Load) -> None:
    env = {"JOBMASTER_LEASES__LEASE": "20s", "JOBMASTER_LEASES": "{lease: 30s, renew: 4s}"}
    leases = load(None, env).settings.leases
    assert (leases.lease_seconds, leases.renew_seconds) == (20.0, 4.0)


def test_a_table_entry_with_a_dash_is_matched_by_an_underscore(load: Load) -> None:
    text = "agents: {pay-roll: {slots: 1}}"
    assert load(text, {"JOBMASTER_AGENTS__PAY_ROLL__SLOTS": "9"}).settings.agents["pay-roll"].slots == 9


@pytest.mark.parametrize(
    ("env", "problem"),
    [
        (
            {"JOBMASTER_LEASE__LEASE": "1s"},
            'environment JOBMASTER_LEASE__LEASE: no setting and no known variable is called JOBMASTER_LEASE__LEASE '
            '(did you mean "JOBMASTER_LEASES__LEASE"?)',
        ),
        ({"JOBMASTER_MASTER_DSN": "x"}, '(did you mean "JOBMASTER_MASTER__DSN"?)'),
        ({"JOBMASTER_CONFG": "x"}, '(did you mean "JOBMASTER_CONFIG"?)'),
        ({"JOBMASTER_": "x"}, "no setting and no known variable is called JOBMASTER_"),
        ({"JOBMASTER_CLUSTER__X": "x"}, "no setting"),
        ({"JOBMASTER_XXXXXXXXXXXX": "x"}, "(settings are JOBMASTER_<SECTION>__<KEY>"),
        (
            {"JOBMASTER_LEASES__LEASE": "5min"},
            "environment JOBMASTER_LEASES__LEASE: leases.lease: expected a duration such as 30s, 5m, 250ms, 1h30m or a "
            'number of seconds, got "5min" (did you mean "5m"?)',
        ),
        ({"JOBMASTER_LEASES__LEASE": ""}, "a value is missing"),
        ({"JOBMASTER_DATA_DIR": ""}, "a value is missing"),
        ({"JOBMASTER_LEASES": "{lease: 1:30}"}, "environment JOBMASTER_LEASES: leases.lease: unquoted 1:30"),
        ({"JOBMASTER_LEASES": "{lease"}, "environment JOBMASTER_LEASES: leases: this is not valid YAML"),
        ({"JOBMASTER_AGENTS__A": "{slots: 1, slots: 2}"}, 'agents.a.slots: duplicate key "slots"'),
        ({"JOBMASTER_DATA_DIR": "a\udcffb"}, "not UTF-8"),
        ({"JOBMASTER_AGENTS__BAD NAME__SLOTS": "1"}, "this name does not fit"),
    ],
)  # fmt: skip
def test_a_variable_that_does_not_fit_is_one_line(complain: Complain, env: dict[str, str], problem: str) -> None:
    (found,) = complain("", env)
    assert problem in found


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("leases.leese=1s", 'command line --set leases.leese: there is no key "leese" (did you mean "lease"?)'),
        ("nonsense", "command line --set nonsense: expected KEY=VALUE"),
        ("=1", "expected KEY=VALUE"),
        ("cluster.name=x", "(cluster is a single value and has no keys)"),
        ("leases..lease=x", 'there is no key ""'),
        ("leases.lease=x", 'got "x"'),
        ("master=5", "expected a mapping"),
        ("jobs.durability=mater", '(did you mean "master"?)'),
    ],
)  # fmt: skip
def test_an_override_that_does_not_fit_is_one_line(complain: Complain, override: str, problem: str) -> None:
    (found,) = complain("", {}, [override])
    assert problem in found


def test_a_broken_section_of_the_file_is_not_hidden_by_an_override_inside_it(complain: Complain) -> None:
    (problem,) = complain("leases: 5", {"JOBMASTER_LEASES__LEASE": "12s"})
    assert problem == 'cluster.yaml:1:9: leases: expected a mapping (key: value), got "5"'


def test_an_entry_that_only_an_override_has_is_a_warning(load: Load) -> None:
    loaded = load("agents: {payroll: {slots: 7}}", {}, ["agents.payrol.slots=3"])
    assert [str(warning) for warning in loaded.warnings] == [
        'command line --set agents.payrol.slots: agents.payrol: adds "payrol", which the file does not have '
        '(did you mean "payroll"?)'
    ]


def test_problems_of_all_layers_come_together_in_the_order_of_the_layers(complain: Complain) -> None:
    problems = complain("cluster: A", {"JOBMASTER_X": "1"}, ["y=2"])
    assert [problem.split(" ")[0] for problem in problems] == ["cluster.yaml:1:10:", "environment", "command"]


def test_other_known_variables_are_ignored(load: Load) -> None:
    env = {name: "/somewhere" for name in OTHER_VARIABLES if name != "JOBMASTER_CONFIG"}
    assert load(None, env).warnings == ()


def test_variables_that_kubernetes_makes_for_services_are_ignored(load: Load) -> None:
    env = {
        "JOBMASTER_SERVICE_HOST": "10.0.0.1",
        "JOBMASTER_SERVICE_PORT": "8080",
        "JOBMASTER_SERVICE_PORT_HTTP": "8080",
        "JOBMASTER_PORT": "tcp://10.0.0.1:8080",
        "JOBMASTER_WEB_PORT_8080_TCP": "tcp://10.0.0.1:8080",
        "JOBMASTER_WEB_PORT_8080_TCP_PROTO": "tcp",
        "JOBMASTER_WEB_PORT_8080_TCP_ADDR": "10.0.0.1",
    }
    assert load(None, env).warnings == ()


def test_a_typing_error_that_looks_like_a_service_is_still_refused(complain: Complain) -> None:
    assert complain("", {"JOBMASTER_METRICS_PORT": "http://x"})
    assert complain("", {"JOBMASTER_OBSERVABILITY__PORT": "9464"})


def test_every_variable_that_is_suggested_is_accepted(complain: Complain) -> None:
    for name in known_variables(None):
        # A value that fits nothing: the complaint must be about the value, never about the name.
        for problem in complain("", {name: "[\x01"}) if name != "JOBMASTER_DATA_DIR" else ():
            assert "no setting" not in problem
