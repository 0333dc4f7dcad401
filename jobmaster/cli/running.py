"""Run one coroutine for a command, with a reader of the master where it needs one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from jobmaster.master.reports import Reader
    from jobmaster.settings.model import ClusterSettings

T = TypeVar("T")


def run_async(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run to the end; Ctrl-C cancels it and raises ``KeyboardInterrupt``, also when the cancelled coroutine raises another
    error while it closes its connections."""

    async def main() -> T:
        try:
            return await coroutine
        except Exception as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # a limit of asyncio.timeout has taken its cancellation back
                raise asyncio.CancelledError from error
            raise

    return asyncio.run(main())


@asynccontextmanager
async def reader_of(settings: ClusterSettings) -> AsyncIterator[Reader]:
    """A read-only connection to the master."""
    from jobmaster.wiring import open_reader

    reader = await open_reader(settings)
    try:
        yield reader
    finally:
        await reader.close()
