"""``${NAME}``, ``${NAME:-default}`` and ``${file:path}`` inside values.

References are replaced after parsing, so an inserted text never becomes structure. They are replaced once, so an inserted
text is never searched for references (a variable that holds ``${OTHER}`` stays that text). A missing variable or file is an
error, never an empty text. ``$${`` is a literal ``${``. Errors quote the reference, not the text behind it. A text that is
inserted into the user, the password or the value of a parameter of a URL is percent-encoded: a password may hold any
character.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from jobmaster.settings.problems import Problem
from jobmaster.settings.urls import encode_parts
from jobmaster.settings.yaml_tree import Entry, MappingNode, Node, ScalarNode, SequenceNode, Style, join_path

FILE_BYTES_MAX = 64 * 1024

_REFERENCE = re.compile(r"\$\$\{|\$\{([^{}]*)\}|\$\{")
_VARIABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)


class _Missing(Exception):
    """A reference that cannot be replaced: sentence and hint."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message, self.hint = message, hint


@dataclass(frozen=True, slots=True)
class Interpolator:
    """Replaces references by variables of ``env`` and by files; relative paths start at ``directory``."""

    env: Mapping[str, str]
    directory: Path

    def fill(self, node: Node, path: str, problems: list[Problem]) -> Node:
        """The tree with every reference replaced. A scalar whose reference cannot be replaced is reported and BROKEN."""
        match node:
            case MappingNode():
                entries = {
                    key: Entry(entry.origin, self.fill(entry.value, join_path(path, key), problems))
                    for key, entry in node.entries.items()
                }
                return MappingNode(entries, origin=node.origin)
            case SequenceNode():
                items = [self.fill(item, join_path(path, at), problems) for at, item in enumerate(node.items)]
                return SequenceNode(items, node.origin)
            case ScalarNode():
                return self._fill_scalar(node, path, problems)

    def _fill_scalar(self, node: ScalarNode, path: str, problems: list[Problem]) -> ScalarNode:
        if "${" not in node.text or node.style is Style.BROKEN:
            return node
        via: list[str] = []

        def follow(match: re.Match[str]) -> str:
            if match[0] == "$${":
                return "${"
            if match[1] is None:
                raise _Missing("${ is not closed, or holds another ${", "they do not nest; $${ is a literal ${")
            value, name = self._look_up(match[1])
            via.append(name)
            return value

        try:
            text = encode_parts(node.text, follow, _REFERENCE)
        except _Missing as error:
            problems.append(Problem(node.origin, path, error.message, error.hint))
            return replace(node, style=Style.BROKEN)
        # Without a reference (only $${) the scalar keeps the style and so the type that its author wrote.
        style = Style.RAW if via else node.style
        return ScalarNode(text, style, replace(node.origin, via=tuple(via)), node.text if via else text)

    def _look_up(self, reference: str) -> tuple[str, str]:
        """Text behind a reference, and the reference as origins show it (never with its default)."""
        if reference.startswith("file:"):
            return self._read_file(reference.removeprefix("file:")), f"${{{reference}}}"
        match = _VARIABLE.fullmatch(reference)
        if match is None:
            raise _Missing(
                "a ${...} is not understood", "write ${NAME}, ${NAME:-default} or ${file:/path}; $${ is a literal ${"
            )
        name, default = match.groups()
        # As in a shell, :- also replaces an empty variable.
        value = self.env.get(name)
        if value or (value is not None and default is None):
            return value, f"${{{name}}}"
        if default is None:
            raise _Missing(f"the environment variable {name} is not set", f"set it, or write ${{{name}:-default}}")
        return default, f"the default of ${{{name}}}"

    def _read_file(self, name: str) -> str:
        """Content without the line end that editors add. Devices and pipes are refused: they could block for ever."""
        if not name:
            raise _Missing("${file:} names no file", "write ${file:/path}")
        path = self.directory / name
        try:
            path = self.directory / Path(name).expanduser()
            mode = path.stat().st_mode
            if not stat.S_ISREG(mode):
                raise _Missing(f"{path} is not a regular file")
            with path.open("rb") as stream:
                content = stream.read(FILE_BYTES_MAX + 1)
            text = content.decode("utf-8")
        except UnicodeDecodeError:
            raise _Missing(f"the file {path} is not UTF-8 text") from None
        except (OSError, ValueError, RuntimeError) as error:
            reason = getattr(error, "strerror", None) or "its name is invalid"
            raise _Missing(f"the file {path} cannot be read: {reason}", "check its path and permissions") from None
        if len(content) > FILE_BYTES_MAX:
            raise _Missing(f"the file {path} is larger than {FILE_BYTES_MAX // 1024} KiB")
        return text.rstrip("\r\n")
