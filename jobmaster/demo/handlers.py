"""The demo's one handler; agents find it as ``jobmaster.demo.handlers``."""

from __future__ import annotations

from jobmaster.demo.indexing import FileIndex, index_source
from jobmaster.handlers import Handlers

INDEX_FILE = "demo.index_file"

handlers = Handlers()


@handlers.job(name=INDEX_FILE, timeout=60, max_attempts=3, backoff=0.2)
def index_file(path: str) -> FileIndex:
    """Index one file, in a thread: parsing holds the processor for up to a tenth of a second."""
    return index_source(path)
