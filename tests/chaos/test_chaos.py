"""Short forms of the long run: a clean cluster is clean under faults, and one without a guard is caught."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import Any

import pytest

from tests.chaos.cluster.fleet import REPOSITORY, environment
from tests.support.patience import PATIENCE_SECONDS

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def chaos(*arguments: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, report, and the lines of progress."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos", "--json", *arguments],
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_SECONDS,  # more than the load and the bound of its drain
        cwd=REPOSITORY,
        env=environment({}),
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, json.loads(done.stdout.splitlines()[-1]), done.stderr


def test_nothing_is_lost_and_nothing_counts_twice_under_mixed_faults() -> None:
    code, report, progress = chaos("--minutes", "0.45", "--seed", "3", "--rate", "400", "--bound", "800")
    assert code == 0, f"{report}\n{progress}"
    assert report["violations"] == {}
    assert report["acknowledged"] > 500
    assert report["ok"] + sum(report["excused"].values()) >= report["acknowledged"] - sum(
        report["states"].get(state, 0) for state in ("FAILED", "CANCELLED")
    )
    assert len(report["faults"]) >= 4
    assert set(report["invariants"].values()) == {0}
    # Without `loans`: those that are over are swept while a slow machine still drains.
    parts = ("limited_runs", "lent_runs", "ordering_keys", "signals", "workflows")
    assert min(report["flow"][part] for part in parts) > 0, report["flow"]
    assert report["flow"]["limited_at_once"] > 1


@pytest.mark.long
@pytest.mark.parametrize(
    ("stores", "kinds"),
    [
        ("sentinel", {"sentinel_primary_kill", "sentinel_failover"}),
        ("cluster", {"node_kill", "node_failover", "slots_moved"}),
    ],
)
def test_a_store_of_several_servers_loses_nothing_that_it_promised(stores: str, kinds: set[str]) -> None:
    code, report, progress = chaos(
        *("--minutes", "0.5", "--seed", "4", "--rate", "300", "--bound", "800", "--no-disks", "--stores", stores),
        *(word for kind in sorted(kinds) for word in ("--fault", kind)),
    )
    assert code == 0, f"{report}\n{progress}"
    assert (report["stores"], report["violations"]) == (stores, {})
    # On a busy machine Sentinels take so long for one failover that the other kind finds no target.
    assert report["faults"].keys() == kinds if stores == "cluster" else report["faults"].keys() <= kinds
    assert sum(report["faults"].values()) >= 2


@pytest.mark.long
@pytest.mark.parametrize(
    ("mutant", "fault", "caught_as"),
    [
        ("list_before_commit", "agent_kill", {"lost", "I5"}),
    ],
)
def test_an_agent_without_a_guard_is_caught(mutant: str, fault: str, caught_as: set[str]) -> None:
    code, report, _ = chaos(
        *("--minutes", "0.3", "--seed", "5", "--rate", "600", "--bound", "50", "--no-disks"),
        *("--mutant", mutant, "--fault", fault),
    )
    shutil.rmtree(report["kept"])
    assert code == 1
    assert {name for name, count in report["violations"].items() if count} >= caught_as
