"""How far a write has come, told while it runs: counted in the master, by a connection of its own."""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType

from jobmaster.master.connection import Calls, Connections
from jobmaster.model.errors import JobMasterError
from jobmaster.pipeline.context import PipelineRun

_EVERY_SECONDS = 3.0


class Progress:
    """Tells every few seconds how many rows are in."""

    def __init__(self, run: PipelineRun, run_id: str) -> None:
        self._run = run
        self._run_id = run_id
        self._opener = run.link.opener
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="jobmaster-progress", daemon=True)

    def __enter__(self) -> Progress:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        with asyncio.Runner() as runner:
            connections = Connections(self._opener, 1)
            calls = Calls(connections)
            while not self._done.wait(_EVERY_SECONDS):
                try:
                    rows = runner.run(calls.ask("pipeline/written", self._run_id))
                except JobMasterError:
                    continue  # the tasks will say what is wrong
                if rows[0]["inserted"]:
                    self._run.tell(f"{rows[0]['inserted']:,} jobs are in".replace(",", " "))
            runner.run(connections.close())
