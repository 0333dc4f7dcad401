"""How far the stages of a Spark application are, read from the progress bars that every driver prints.

``spark.ui.showConsoleProgress`` is the one report that Spark makes in all languages, without its web server: three bars at
most, ``[Stage 3:====>      (7 + 2) / 20]``, a few times a second, from half a second after the begin of a stage on.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_BAR = re.compile(r"\[Stage (?P<stage>\d+):[=> ]*\((?P<done>\d+) \+ \d+\) / (?P<tasks>\d+)\]")
_ENDS = re.compile(r"[\r\n]+")
_LINE_CHARS = 2_000


class StageProgress(NamedTuple):
    """The stages that run."""

    stages: tuple[int, ...]
    done: int
    """Tasks of them that have ended."""
    tasks: int

    @property
    def text(self) -> str:
        """Which they are."""
        return f"stage{'s' * (len(self.stages) > 1)} {', '.join(map(str, self.stages))}"


class DriverOutput:
    """Output of a driver as it comes: progress bars and lines."""

    def __init__(self) -> None:
        self._rest = ""

    def feed(self, text: str) -> tuple[StageProgress | None, list[str]]:
        """The last progress in this part of the output, and the lines that it ends."""
        *ended, self._rest = _ENDS.split(self._rest + text)
        # The last bar has no end until the next one comes.
        if _BAR.search(self._rest) or len(self._rest) > _LINE_CHARS:
            ended.append(self._rest)
            self._rest = ""
        return self._read(ended)

    def end(self) -> tuple[StageProgress | None, list[str]]:
        """What is left at the end of the output."""
        left, self._rest = [self._rest], ""
        return self._read(left)

    @staticmethod
    def _read(parts: list[str]) -> tuple[StageProgress | None, list[str]]:
        progress, lines = None, []
        for part in parts:
            if bars := list(_BAR.finditer(part)):
                progress = StageProgress(
                    tuple(int(bar["stage"]) for bar in bars),
                    sum(int(bar["done"]) for bar in bars),
                    sum(int(bar["tasks"]) for bar in bars),
                )
            if line := _BAR.sub("", part).strip():
                lines.append(line[:_LINE_CHARS])
        return progress, lines
