"""A producer with many jobs on their way does not stand still for full collections."""

from __future__ import annotations

import subprocess
import sys

import pytest

from jobmaster.collector import THRESHOLDS

BURSTS = """
import asyncio, gc, sys
import jobmaster, jobmaster.wiring
from jobmaster.client.coalescer import Coalescer, PendingLimit

if sys.argv[1] == "tuned":
    jobmaster.tune_collector()


async def send(items):
    await asyncio.sleep(0)
    return items


async def main():
    coalescer = Coalescer(send, chunk=1000, calls_max=2, pending_limit=PendingLimit())

    async def submit(number):
        return await coalescer.answer(number, 1)

    for _ in range(60):
        await asyncio.gather(*(submit(number) for number in range(1000)))


before = gc.get_stats()[2]["collections"]
asyncio.run(main())
print(gc.get_stats()[2]["collections"] - before)
"""


def full_collections(how: str) -> int:
    """During 60 bursts of 1,000 submits each, in a process of their own."""
    done = subprocess.run([sys.executable, "-c", BURSTS, how], check=True, capture_output=True, text=True)
    return int(done.stdout)


@pytest.mark.slow
def test_bursts_of_submits_make_no_full_collection() -> None:
    assert full_collections("tuned") == 0


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="its collector is another one")
@pytest.mark.slow
def test_at_the_thresholds_of_python_they_make_several() -> None:
    """Else the test above shows nothing."""
    assert full_collections("as it is") > 0


def test_what_is_loaded_is_not_looked_at_again() -> None:
    code = "import gc, jobmaster; jobmaster.tune_collector(); print(gc.get_freeze_count(), gc.get_threshold()[0])"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    frozen, young = map(int, done.stdout.split())
    assert frozen > 1000
    assert young == THRESHOLDS[0]
