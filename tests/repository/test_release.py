"""The checks before a release report what is not ok, and run to their end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests import release
from tests.release import Failed, Release, audited, checked, line_of


def test_a_failed_check_is_a_row_with_its_reason_and_stops_nothing() -> None:
    def fails() -> str:
        raise Failed("because")

    assert line_of(checked("first", fails)).endswith("NOT OK: because")
    assert line_of(checked("second", lambda: "12 files")).endswith("ok  12 files")


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
