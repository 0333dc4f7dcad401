"""The handlers that ``count.py`` submits and an agent runs."""

from pathlib import Path

from jobmaster import Handlers

handlers = Handlers()


# A file that is not there is not there a second later: no further attempt.
@handlers.job(name="words.count", timeout=30, give_up_on=FileNotFoundError)
def count_words(path: str) -> int:
    return len(Path(path).read_text(encoding="utf-8").split())
