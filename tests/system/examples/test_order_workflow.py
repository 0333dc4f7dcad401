"""``examples/order_workflow``: an order that is shipped, one that is undone, and the commands about them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.patience import PATIENCE_SECONDS
from tests.system.cli.conftest import Terminal

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def order(example: Terminal, *words: str) -> list[str]:
    ran = subprocess.run(
        [sys.executable, "order.py", *words],
        cwd=example.folder,
        env=example.environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return [" ".join(line.split()) for line in ran.stdout.splitlines()]


def test_a_large_order_is_insured_and_shipped(example: Terminal) -> None:
    first, *lines = order(example, "A7", "lamp", "19900")
    assert first.startswith("SUCCEEDED: jobmaster workflow show ")
    assert "ship SUCCEEDED shipped A7 (P-A7, R-A7-lamp)" in lines
    assert "insure SUCCEEDED insured P-A7" in lines
    assert "undo charge SKIPPED -" in lines
    assert "apologise SKIPPED -" in lines


def test_a_small_order_is_not_insured(example: Terminal) -> None:
    lines = order(example, "A9", "lamp", "100")
    assert "insure SKIPPED -" in lines
    assert "ship SUCCEEDED shipped A9 (P-A9, R-A9-lamp)" in lines


def test_an_order_that_fails_is_undone_and_shown_as_a_tree(example: Terminal) -> None:
    first, *lines = order(example, "A8", "unicorn", "500")
    assert first.startswith("FAILED: ")
    assert "undo charge SUCCEEDED refunded 500 of P-A8" in lines
    assert "undo reserve SKIPPED -" in lines
    assert "apologise SUCCEEDED wrote about A8" in lines
    (listed,) = example.call("workflow", "list", "--state", "failed", "-o", "json").json
    assert (listed["name"], listed["state"], listed["steps_failed"]) == ("order", "FAILED", 1)
    shown = example.call("workflow", "show", listed["id"]).out
    assert "|- charge  SUCCEEDED" in shown
    assert "reserve  FAILED" in shown
    steps = {one["name"]: one for one in example.call("workflow", "show", listed["id"], "-o", "json").json["steps"]}
    assert (steps["ship"]["state"], steps["ship"]["job"]) == ("BLOCKED", None)
    assert steps["ship"]["parents"] == [steps[name]["number"] for name in ("is_large", "insure", "charge", "reserve")]
    refused = example.call("workflow", "retry", listed["id"])
    assert refused.code == 4
    assert "its steps were undone" in refused.err


def test_mistakes_are_one_sentence(example: Terminal) -> None:
    unknown = example.call("workflow", "show", "0198f3a2-7c1e-7b44-9d2f-3f5b00000000")
    assert unknown.code == 3
    assert "there is no workflow" in unknown.err
    assert example.call("workflow", "cancel", "x").code == 2
    assert example.call("workflow", "list", "--state", "sleeping").code == 2
