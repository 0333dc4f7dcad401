"""``examples/order_workflow``: an order that is shipped, one that is undone, and the commands about them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.system.cli.conftest import Terminal

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def order(example: Terminal, *words: str) -> list[str]:
    ran = example.run("order.py", *words)
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
    # By name: the test of the killed agent may have run before.
    failed = ("workflow", "list", "--name", "order", "--state", "failed")
    (listed,) = example.call(*failed, "-o", "json").json
    assert (listed["name"], listed["state"], listed["steps_failed"]) == ("order", "FAILED", 1)
    shown = example.call("workflow", "show", listed["id"]).out
    assert "|- charge  SUCCEEDED" in shown
    assert "reserve  FAILED" in shown
    assert "Fail: unicorns are sold out" in shown
    steps = {one["name"]: one for one in example.call("workflow", "show", listed["id"], "-o", "json").json["steps"]}
    assert (steps["ship"]["state"], steps["ship"]["job"]) == ("BLOCKED", None)
    assert steps["ship"]["parents"] == [steps[name]["number"] for name in ("is_large", "insure", "charge", "reserve")]
    job = example.call("job", "show", steps["reserve"]["job"], "-o", "json").json
    assert (job["workflow"], job["step"], job["state"]) == (listed["id"], "reserve", "FAILED")
    refused = example.call("workflow", "retry", listed["id"])
    assert refused.code == 4
    assert "its steps were undone" in refused.err


def test_mistakes_are_one_sentence(example: Terminal) -> None:
    unknown = example.call("workflow", "show", "0198f3a2-7c1e-7b44-9d2f-3f5b00000000")
    assert unknown.code == 3
    assert "there is no workflow" in unknown.err
    assert example.call("workflow", "cancel", "x").code == 2
    assert example.call("workflow", "list", "--state", "sleeping").code == 2


MANY = """
import sys
from tasks import handlers, order_flow
from jobmaster import connect_sync

with connect_sync(handlers=handlers) as cluster:
    orders = [(f"K{number}", "unicorn" if number % 4 == 0 else "lamp") for number in range(int(sys.argv[1]))]
    started = [cluster.workflows.start("killed", order_flow(*order, 19900)) for order in orders]
    print("started", flush=True)
    for each in started:
        ended = cluster.workflows.wait(each, timeout=600)
        undone = [step.name for step in ended.steps if step.runs_on == "undo" and step.state == "SUCCEEDED"]
        print(ended.state, max(step.tries for step in ended.steps), *undone, flush=True)
"""


def test_orders_are_right_when_the_agent_is_killed_half_way(example: Terminal) -> None:
    """Its supervisor starts another one. No order is shipped and refunded, none is left, and no step has two jobs."""
    orders = 40
    (agent,) = [one for one in example.call("agent", "list", "-o", "json").json if one["state"] == "ACTIVE"]
    shell = subprocess.Popen(
        [sys.executable, "-c", MANY, str(orders)],
        cwd=example.folder,
        env=example.environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    with shell:
        assert shell.stdout is not None
        assert shell.stdout.readline() == "started\n"
        os.kill(agent["pid"], signal.SIGKILL)
        ended = shell.stdout.read().splitlines()
    assert shell.returncode == 0
    assert ended == ["FAILED 1 undo charge" if number % 4 == 0 else "SUCCEEDED 1" for number in range(orders)]
    running = [one["state"] for one in example.call("workflow", "list", "--name", "killed", "-o", "json").json]
    assert running.count("FAILED") == orders // 4
