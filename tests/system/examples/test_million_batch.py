"""``examples/million_batch``: a batch, in a small form, with its progress bar and its callback."""

from __future__ import annotations

import re

import pytest

from tests.system.cli.conftest import Terminal

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def _run(example: Terminal, *options: str) -> str:
    """What the program prints."""
    ran = example.run("million.py", *options)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.long
def test_it_survives_the_kill_of_an_agent(example: Terminal) -> None:
    ran = _run(example, "20000", "--kill-agent")
    assert "was killed" in ran
    assert "SUCCEEDED: 20000 of 20000" in ran, ran


def test_it_draws_its_progress_and_the_callback_has_run(example: Terminal) -> None:
    ran = _run(example, "5000", "--key", "monday")
    assert "] 100% " in ran
    assert re.search(r"SUCCEEDED: 5000 of 5000 in [0-9.]+ s\nbatch [0-9a-f-]{36} has ended\n", ran), ran
    again = _run(example, "5000", "--key", "monday")
    assert "5000 jobs submitted" in again
    assert "SUCCEEDED: 5000 of 5000" in again, "the same batch"
    (listed,) = example.call("batch", "list", "--key", "monday", "-o", "json").json
    assert (listed["state"], listed["size"], listed["succeeded"]) == ("SUCCEEDED", 5000, 5000)
    shown = example.call("batch", "show", listed["id"])
    assert re.search(r"^succeeded +5000$", shown.out, re.MULTILINE), shown.out
    watched = example.call("batch", "watch", listed["id"])
    assert watched.code == 0, watched.err
    assert "100%  5 000 of 5 000  SUCCEEDED" in watched.out
    cancelled = example.call("batch", "cancel", listed["id"], "-o", "json").json
    assert (cancelled["state"], cancelled["cancel_requested"]) == ("SUCCEEDED", False), "what has ended stays as it is"
    retried = example.call("batch", "retry", listed["id"])
    assert retried.code != 0
    assert "only what has failed can be retried" in retried.err
