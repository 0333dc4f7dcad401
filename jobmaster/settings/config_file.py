"""The configuration file: which one it is, and its text."""

from __future__ import annotations

import codecs
import os
import stat
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from jobmaster.settings.problems import Origin, OriginKind, Problem

CONFIG_VARIABLE = "JOBMASTER_CONFIG"
SEARCHED_NAMES = ("jobmaster.yaml", "cluster.yaml")
FILE_BYTES_MAX = 256 * 1024
"""PyYAML's parser reads about 100 KiB a second; a configuration has a few."""


def find_file(path: Path | None, env: Mapping[str, str], warnings: list[Problem]) -> Path | None:
    """The file to read, in the order of ``load_settings``. A dangling link counts, so that it is reported as missing."""
    if path is not None:
        return path
    if env.get(CONFIG_VARIABLE):
        return Path(env[CONFIG_VARIABLE])
    found = [Path(name) for name in SEARCHED_NAMES if os.path.lexists(name)]
    if len(found) > 1:
        message = f"{found[1]} lies beside {found[0]} and is not read"
        warnings.append(Problem(Origin(OriginKind.FILE, str(found[0])), "", message, "name one of them with --config"))
    return found[0] if found else None


class Unreadable(Exception):
    """The file cannot be read as text."""

    def __init__(self, origin: Origin, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.problem = Problem(origin, "", message, hint)


def read_text(source: Path, origin: Origin) -> str:
    """Decoded content; ``Unreadable`` with the reason. Pipes and devices are refused: reading them could block for ever."""
    try:
        mode = source.stat().st_mode
        if stat.S_ISDIR(mode):
            raise Unreadable(origin, "this is a directory", "name the YAML file inside it")
        if not stat.S_ISREG(mode):
            raise Unreadable(origin, "this is not a regular file")
        with source.open("rb") as stream:
            content = stream.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        raise Unreadable(origin, "this file does not exist", "write one with: jobmaster config init") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "its name is invalid"
        raise Unreadable(origin, f"this file cannot be read: {reason}", "check its path and permissions") from None
    if len(content) > FILE_BYTES_MAX:
        limit = f"this file is larger than {FILE_BYTES_MAX // 1024} KiB"
        raise Unreadable(origin, limit, "a configuration is a few KiB of YAML")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # With a byte order mark the codec counts from behind it.
        start = error.start + (len(codecs.BOM_UTF8) if content.startswith(codecs.BOM_UTF8) else 0)
        before = content[:start].decode("utf-8", "replace")
        place = replace(origin, line=before.count("\n") + 1, column=len(before) - before.rfind("\n"))
        raise Unreadable(place, f"this is not UTF-8: byte 0x{content[start]:02x}", "save the file as UTF-8") from None
