"""Count the words of files: ``python count.py README.md tasks.py``. Plain code, without an event loop."""

import sys
from pathlib import Path

from tasks import count_words, handlers

from jobmaster import JobFailed, call, connect_sync

with connect_sync(handlers=handlers) as cluster:
    jobs = {path: cluster.submit(call(count_words, str(Path(path).absolute()))) for path in sys.argv[1:]}
    for path, job in jobs.items():
        try:
            print(f"{job.result(timeout=30):8} {path}")
        except JobFailed as error:
            sys.exit(f"{path}: {error.info.message if error.info else error}")
