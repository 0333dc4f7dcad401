"""Submit a batch of a million jobs and draw its progress.

``python million.py``, ``python million.py 5000``, ``python million.py --key monday``, ``python million.py --kill-agent``.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Event

from tasks import handlers, report, square

from jobmaster import BatchView, Call, call, connect_sync

BAR_CHARS = 40
LOOK_SECONDS = 0.2
parser = argparse.ArgumentParser(description="Submit a batch of jobs and draw its progress.")
parser.add_argument("jobs", type=int, nargs="?", default=1_000_000)
parser.add_argument("--key", help="run again with the same key after a crash of this program: it goes on where it was")
parser.add_argument("--kill-agent", action="store_true", help="kill -9 an agent when half of the jobs is submitted")
chosen = parser.parse_args()


def draw(view: BatchView, looks: int) -> None:
    filled = round(view.done * BAR_CHARS)
    passed = looks * LOOK_SECONDS
    left = f"{passed / view.done - passed:.0f} s left" if 0 < view.done < 1 else ""
    print(f"\r[{'#' * filled}{'.' * (BAR_CHARS - filled)}] {view.done:4.0%} {left:<12}", end="", flush=True)


def kill_an_agent() -> None:
    """Its supervisor starts another one, and the jobs that it had are rescued."""
    jobmaster = str(Path(sys.executable).with_name("jobmaster"))
    listed = subprocess.run([jobmaster, "agent", "list", "-o", "json"], capture_output=True, text=True, check=True)
    agent = next(each for each in json.loads(listed.stdout) if each["state"] == "ACTIVE")
    os.kill(agent["pid"], signal.SIGKILL)
    print(f"agent {agent['id']} was killed")


def calls() -> Iterator[Call[object]]:
    """A generator: only the jobs that are on their way are in memory."""
    for number in range(chosen.jobs):
        if chosen.kill_agent and number == chosen.jobs // 2:
            kill_an_agent()
        yield call(square, number)


with connect_sync(handlers=handlers) as cluster:
    options = {} if chosen.key is None else {"key": chosen.key}
    with cluster.batch("squares", on_complete=call(report), description=f"{chosen.jobs} squares", **options) as batch:
        batch.submit_many(calls())
    print(f"{batch.submitted} jobs submitted")
    looks = 0
    while not (view := batch.get()).state.final:
        draw(view, looks)
        looks += 1
        Event().wait(LOOK_SECONDS)
    draw(view, looks)
    assert view.counts is not None
    assert view.created_at is not None
    assert view.ended_at is not None
    seconds = (view.ended_at - view.created_at).total_seconds()
    print(f"\n{view.state.value}: {view.counts.succeeded} of {view.size} in {seconds:.1f} s")
    print(cluster.result(str(view.callbacks["complete"]), timeout=60))
