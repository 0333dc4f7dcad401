"""Submit a batch of a million jobs and draw its progress: ``python million.py``, ``python million.py 5000``."""

import sys
from threading import Event

from tasks import handlers, report, square

from jobmaster import BatchView, call, connect_sync

BAR_CHARS = 40


def draw(view: BatchView) -> None:
    filled = round(view.done * BAR_CHARS)
    print(f"\r[{'#' * filled}{'.' * (BAR_CHARS - filled)}] {view.done:4.0%}", end="", flush=True)


size = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
with connect_sync(handlers=handlers) as cluster:
    with cluster.batch("squares", on_complete=call(report), description=f"{size} squares") as batch:
        # A generator: only the jobs that are on their way are in memory.
        batch.submit_many(call(square, number) for number in range(size))
    print(f"{batch.submitted} jobs submitted")
    while not (view := batch.get()).state.final:
        draw(view)
        Event().wait(0.2)
    draw(view)
    assert view.counts is not None
    assert view.created_at is not None
    assert view.ended_at is not None
    seconds = (view.ended_at - view.created_at).total_seconds()
    print(f"\n{view.state.value}: {view.counts.succeeded} of {view.size} in {seconds:.1f} s")
    print(cluster.result(str(view.callbacks["complete"]), timeout=60))
