"""File systems of Arrow by the URLs that Spark uses."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_SCHEMES = {"s3a": "s3", "s3n": "s3"}
"""Schemes of Hadoop's libraries, which Arrow has under other names."""


def file_system_of(url: str) -> tuple[FileSystem, str]:
    """Arrow's file system of a directory or URL, and the path in it.

    Raises:
        OSError, ValueError: Arrow has none for it, or it cannot be reached.
    """
    from pyarrow.fs import FileSystem, LocalFileSystem

    # A local directory is no URI for Arrow: its name may have blanks.
    local = url.removeprefix("file://")
    if "://" not in local:
        return LocalFileSystem(), local.rstrip("/")
    scheme, _, rest = url.partition("://")
    found: tuple[FileSystem, str] = FileSystem.from_uri(f"{_SCHEMES.get(scheme, scheme)}://{rest}")
    return found
