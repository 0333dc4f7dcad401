"""The checks before a release report what is not ok, and run to their end."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests import ledger, release
from tests.ledger import FaultRun, SeedRun, append
from tests.release import Failed, Release, audited, check_impact, checked, line_of, report_of


def test_a_failed_check_is_a_row_with_its_reason_and_stops_nothing() -> None:
    def fails() -> str:
        raise Failed("because")

    assert line_of(checked("first", fails)).endswith("NOT OK: because")
    assert line_of(checked("second", lambda: "12 files")).endswith("ok  12 files")
    assert line_of(checked("third", lambda: str(1 / 0))).endswith("NOT OK: ZeroDivisionError: division by zero")


def test_a_report_is_found_among_lines_that_tell_how_far_a_program_is() -> None:
    program = "import sys; print('{\"lost\": 0}'); sys.stderr.write('the last part  1.2 s\\n')"
    assert report_of(sys.executable, "-c", program) == {"lost": 0}
    with pytest.raises(Failed, match="printed no report"):
        report_of(sys.executable, "-c", "print('half way')")


@pytest.mark.parametrize(
    ("dependencies", "reason"),
    [
        ([{"name": "a", "version": "1", "vulns": [{"id": "CVE-1"}]}], r"a 1 \(CVE-1\)"),
        ([{"name": "a", "skip_reason": "not found"}], "nothing was audited"),
        ([{"name": "a", "version": "1", "vulns": []}, {"name": "b", "skip_reason": "not found"}], "not audited: b"),
    ],
)
def test_what_was_not_audited_is_not_ok(dependencies: list[dict[str, Any]], reason: str) -> None:
    """pip-audit itself ends with 0 when its database has none of the packages."""
    with pytest.raises(Failed, match=reason):
        audited({"dependencies": dependencies}, set())


def test_an_audit_without_findings_counts_packages_and_passes_over_ours() -> None:
    ours = {"name": "jobmaster-cluster", "skip_reason": "not found"}
    assert (
        audited({"dependencies": [{"name": "a", "version": "1", "vulns": []}, ours]}, {"jobmaster-cluster"})
        == "1 packages"
    )


def test_the_version_of_the_tree_is_one(tmp_path: Path) -> None:
    made = Release(tmp_path)
    assert made.version() == made.project["version"]


def test_a_changelog_without_the_version_is_named_with_its_sections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Release(tmp_path)
    monkeypatch.setattr(release, "TREE", tmp_path)
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## Unreleased\n")
    with pytest.raises(Failed, match=r"no section .*; sections: Unreleased"):
        made.changelog()
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n## {made.project['version']} - 2031-01-01\n")
    made.changelog()


@pytest.mark.parametrize("sections", ["Changed, not compatible with 0.2|Security|Added|Changed|Fixed", "Fixed", ""])
def test_sections_in_the_order_of_what_they_ask_are_accepted(sections: str) -> None:
    check_impact("0.3.0\n" + "".join(f"\n### {each}\n- x\n" for each in sections.split("|") if each))


@pytest.mark.parametrize("sections", ["Added|Changed, not compatible", "Fixed|Fixed", "News"])
def test_other_sections_or_another_order_are_named(sections: str) -> None:
    with pytest.raises(Failed, match=r"0\.3\.0: sections .* in their order: Changed, not compatible, Deprecated"):
        check_impact("0.3.0\n" + "".join(f"\n### {each}\n- x\n" for each in sections.split("|")))


def test_an_open_goal_is_not_ok_and_says_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Release(tmp_path)
    monkeypatch.setattr(ledger, "SEEDS", tmp_path / "seeds.json")
    monkeypatch.setattr(ledger, "ACKNOWLEDGED", tmp_path / "acknowledged.json")
    with pytest.raises(Failed, match="0 of 1,000,000 seeds at 0 commits"):
        made.seeds()
    seeds = SeedRun(
        commit="a", day="2030-01-31", first=1, last=1_000_000, seeds=750_000, faultless_seeds=250_000, violations=0,
        seeds_per_cpu_second=7.0,
    )  # fmt: skip
    append(ledger.SEEDS, seeds)
    assert made.seeds().startswith("1,000,000 of 1,000,000 seeds at 1 commits")
    with pytest.raises(Failed, match="no run is kept"):
        made.laboratory()
    run = FaultRun(
        commit="a", day="2030-01-31", program="tests.lab", form="mixed", seed=7, load_seconds=1.0, acknowledged=5, lost=1,
        excused=0, violations=0,
    )  # fmt: skip
    append(ledger.ACKNOWLEDGED, run)
    with pytest.raises(Failed, match="a, 2030-01-31: 5 acknowledged, 1 lost"):
        made.laboratory()
    append(ledger.ACKNOWLEDGED, msgspec.structs.replace(run, lost=0))
    with pytest.raises(Failed, match="no clean hour is kept, the longest run has 1 s"):
        made.laboratory()
    append(ledger.ACKNOWLEDGED, msgspec.structs.replace(run, lost=0, load_seconds=3600.0))
    assert made.laboratory().endswith("; an hour: a, 2030-01-31, 5 acknowledged")
    with pytest.raises(Failed, match="15 of 10,000,000 acknowledged jobs"):
        made.jobs_through_faults()
