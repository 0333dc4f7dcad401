"""Origins of values, and problems with their origin and remedy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from jobmaster.model.errors import ConfigError
from jobmaster.settings.masking import one_line


class OriginKind(StrEnum):
    """The layers, weakest first."""

    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"
    COMMAND_LINE = "command_line"


@dataclass(frozen=True, slots=True)
class Origin:
    """The place of a value.

    ``source`` is the file's path, the variable's name or the ``--set`` text before the ``=``. ``line`` and ``column``
    count from 1 and are set for files only. ``via`` names the references that were replaced, never the text behind them.
    """

    kind: OriginKind
    source: str = ""
    line: int | None = None
    column: int | None = None
    via: tuple[str, ...] = ()

    def __str__(self) -> str:
        source = one_line(self.source)
        match self.kind:
            case OriginKind.DEFAULT:
                return "default"
            case OriginKind.FILE:
                return source if self.line is None else f"{source}:{self.line}:{self.column}"
            case OriginKind.ENVIRONMENT:
                return f"environment {source}"
            case OriginKind.COMMAND_LINE:
                return f"command line --set {source}"

    def describe(self) -> str:
        """The place, and the references that were replaced there."""
        return f"{self} via {', '.join(self.via)}" if self.via else str(self)

    @property
    def position(self) -> str:
        """``line:column`` in a file, otherwise the whole place."""
        return str(self) if self.line is None else f"{self.line}:{self.column}"


DEFAULT_ORIGIN = Origin(OriginKind.DEFAULT)


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake (or, as a warning, one probable mistake), its place, and the remedy."""

    origin: Origin
    path: str
    """Dotted path of the key, empty for the file as a whole."""
    message: str
    hint: str | None = None

    def __str__(self) -> str:
        return self._line("")

    def as_warning(self) -> str:
        """The line of a warning."""
        return self._line("warning: ")

    def _line(self, word: str) -> str:
        path = f"{self.path}: " if self.path else ""
        hint = f" ({self.hint})" if self.hint else ""
        return one_line(f"{self.origin}: {word}{path}{self.message}{hint}")

    def as_dict(self) -> dict[str, str | int | None]:
        """For ``-o json``."""
        return {
            "source": self.origin.source,
            "kind": str(self.origin.kind),
            "line": self.origin.line,
            "column": self.origin.column,
            "path": self.path,
            "message": self.message,
            "hint": self.hint,
        }


class InvalidSettings(ConfigError):
    """The configuration cannot be used; ``problems`` are its lines, ``details`` the same as ``Problem``."""

    def __init__(self, details: Sequence[Problem], warnings: Sequence[Problem] = ()) -> None:
        count = f"{len(details)} problem{'s' if len(details) != 1 else ''}"
        lines = tuple(str(problem) for problem in details)
        super().__init__(f"the configuration has {count}: {lines[0]}" if lines else count, problems=lines)
        self.details = tuple(details)
        self.warnings = tuple(warnings)


def in_file_order(problems: Sequence[Problem]) -> list[Problem]:
    """Problems of the file by line, then those of the environment and the command line; each line once."""
    layers = list(OriginKind)
    unique = dict.fromkeys(problems)
    return sorted(unique, key=lambda p: (layers.index(p.origin.kind), p.origin.line or 0, p.origin.column or 0))
