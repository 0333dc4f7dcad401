"""The upgrade test finds its earlier version, or says what is missing. ``make release-check`` plays the upgrade."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.upgrade import versions
from tests.upgrade.fleet import Fleet
from tests.upgrade.versions import UpgradeFailed, earlier_commit


def test_a_commit_that_is_not_here_is_named_with_what_helps() -> None:
    with pytest.raises(UpgradeFailed, match=r"no commit nothing-like-this: .* or name another one with --from"):
        earlier_commit("nothing-like-this")


def test_without_a_tag_the_commit_of_this_module_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def ran(*argv: str, **_: object) -> bytes:
        asked.append(argv[-1])
        if argv[1] == "describe":
            raise UpgradeFailed("no tag")
        return b"0123456789ab\n"

    monkeypatch.setattr(versions, "ran", ran)
    assert earlier_commit(None) == "0123456789ab"
    assert asked[-1] == f"{versions.EARLIER}^{{commit}}"
    monkeypatch.setattr(versions, "ran", lambda *argv, **_: b"v1.2.3\n" if argv[1] == "describe" else argv[-1].encode())
    assert earlier_commit(None) == "v1.2.3^{commit}"


def test_what_was_written_down_is_read_with_its_level_and_version(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, {})
    (tmp_path / "acknowledged-1").write_text("store one\nmaster two\n")
    (tmp_path / "runs-1").write_text("old quick one\nold quick two\n")
    (tmp_path / "runs-2").write_text("new later three\n")
    assert fleet.acknowledged() == {"one": "store", "two": "master"}
    assert fleet.runs_by() == {("old", "quick"): 2, ("new", "later"): 1}
