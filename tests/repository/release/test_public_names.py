"""No public name of the last release is lost, and none demands more than it did. Names in SQL: ``test_public_sql_names``."""

from __future__ import annotations

import pytest

from tests.repository.public_names import KINDS, call_differences, differences, fewer_demands, record

MEND = (
    "a program of a user may rely on it. Keep the name and let it warn (docs/releasing.md). When its time is over, "
    "or nothing was released yet, run python -m tests.repository.public_names and name it in CHANGELOG.md"
)


@pytest.mark.parametrize("kind", KINDS)
def test_no_public_name_of_the_last_release_is_lost(kind: str) -> None:
    found = differences(kind, record()[kind], KINDS[kind]())
    assert [str(each) for each in found] == [], MEND


def test_the_record_has_what_users_call() -> None:
    """A reader of names that finds nothing would lose nothing."""
    kept = record()
    assert {
        "jobmaster.Cluster.submit",
        "jobmaster.connect",
        "jobmaster.BulkOptions.after",
        "jobmaster.SubmitOptions: BulkOptions",
    } <= kept["python"].keys()
    assert {"jobmaster job submit", "jobmaster job submit --durability", "jobmaster doctor"} <= kept[
        "command line"
    ].keys()
    assert {"leases.lease", "stores.<name>.url", "agents.<name>.buckets"} <= kept["configuration"].keys()
    assert {"POST /api/v1/jobs", "JobRecord.state"} <= kept["http"].keys()
    assert kept["metrics"]["jobmaster_jobs_claimed_total"].startswith("counter")
    assert "view jobs.state" in kept["sql"]
    assert all(len(names) > 30 for kind, names in kept.items())


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        ("(a: int) -> str", "(a: float, b: int = 1, *, c: str = 'x', **rest: object) -> str", []),
        ("(a, b=1)", "(a, b=2)", []),
        ("(a, b)", "(b, a)", ["argument a has another place", "argument b has another place"]),
        ("(a, *, b)", "(a)", ["argument b is gone"]),
        ("(a)", "(a, b)", ["the new argument b is required"]),
        ("(a=1)", "(a)", ["argument a is required now"]),
        ("(a)", "(a, /)", ["argument a cannot be given by its name any more"]),
        ("async (a)", "(a)", ["it is not async now"]),
        ("(a, *rest)", "(a)", ["argument *rest is gone"]),
        ("", "(a)", ["it was no function"]),
        ("(a)", "", ["it is no function any more"]),
    ],
)
def test_what_a_signature_no_longer_takes_is_found(before: str, now: str, said: list[str]) -> None:
    assert call_differences(before, now) == said


@pytest.mark.parametrize(
    ("kind", "before", "now", "said"),
    [
        ("metrics", {"a_total": "counter lane"}, {"a_total": "counter lane", "b": "gauge"}, []),
        ("metrics", {"a_total": "counter lane"}, {"a_total": "counter lane, priority"}, ["a_total: it was"]),
        ("configuration", {"a.b": "", "a": ""}, {"a": ""}, ["a.b: it is gone"]),
        ("command line", {"x": "job"}, {"x": "job", "x --new": "required"}, ["x --new: it is new and required"]),
        ("command line", {"x": "job"}, {"x": "job other"}, ["x: it was 'job' and is 'job other'"]),
        ("command line", {"x": "job"}, {"x": "job?... other?"}, []),
        ("http", {"GET /a": ""}, {"GET /a": "", "GET /a ?b": "required"}, ["GET /a ?b: it is new and required"]),
        ("http", {"GET /a ?b": ""}, {"GET /a ?b": "required"}, ["GET /a ?b: it was '' and is 'required'"]),
    ],
)
def test_what_users_would_notice_is_found(
    kind: str, before: dict[str, str], now: dict[str, str], said: list[str]
) -> None:
    found = [str(each) for each in differences(kind, before, now)]
    assert len(found) == len(said)
    assert all(one.startswith(start) for one, start in zip(found, said, strict=True))


def test_an_argument_that_becomes_required_or_single_demands_more() -> None:
    assert not fewer_demands("job?", "job")
    assert not fewer_demands("job...", "job")
    assert fewer_demands("job", "job?...")
