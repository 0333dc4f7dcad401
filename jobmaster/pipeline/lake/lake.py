"""The lake: files below one directory or URL, and small JSON documents that name the valid ones.

====================================================  ==========================================================
``_lake.json``                                        version of the layout, and the cluster of the lake
``jobs/v1/run=<run>/day=YYYY-MM-DD/*.parquet``        jobs of one retired range, by day of creation
``attempts/v1/run=<run>/day=YYYY-MM-DD/*.parquet``    their attempts that did not conclude them
``logs/v1/run=<run>/day=YYYY-MM-DD/*.parquet``        lines that their runs have written (``ctx.log``)
``rollup/<dataset>/v1/run=<run>/day=.../*.parquet``   figures by hour
``violations/v1/run=<run>/*.parquet``                 violations of an audit
``reports/*.html``, ``plans/*``                       for people
``_manifest/<dataset>/<name>.json``                   the files of one range or day; a copy of the master's row
====================================================  ==========================================================

A file is valid only if a document names its run: files of a crashed run are invisible. Documents are replaced whole. Every
file system of Arrow is supported (a directory, ``s3://``, ``gs://``, ``hdfs://``).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from jobmaster.model.errors import Refused, Unavailable
from jobmaster.pipeline.datasource.file_systems import file_system_of
from jobmaster.pipeline.spark.errors import cause_of

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

FORMAT = 1
"""Version of the layout and of the columns."""
MARK = "_lake.json"
_CHUNK_BYTES = 1 << 20


class Lake:
    """One lake.

    Args:
        where: a directory, or a URL of a file system that both Arrow and Spark support.
    """

    def __init__(self, where: str) -> None:
        self.where = where
        parts = urlsplit(where)
        if parts.scheme in ("", "file"):
            self._local: Path | None = Path(where.removeprefix("file://")).expanduser().absolute()
            # Not as a URI: Spark takes a path as it is written and would look for a folder "my%20lake".
            self.root = f"file://{self._local}"
        else:
            self._local = None
            self.root = where.rstrip("/")
        self._remote: tuple[FileSystem, str] | None = None

    @property
    def local(self) -> Path | None:
        """The directory of a local lake."""
        return self._local

    def url(self, path: str) -> str:
        """A path of the lake as a URL for Spark."""
        return f"{self.root}/{path}"

    # ------------------------------------------------------------ owner and version

    def check(self, cluster: str, *, create: bool) -> None:
        """Refuse a lake of another cluster or of a newer version; mark a new one.

        Args:
            cluster: the cluster's uid as text.

        Raises:
            Refused: the lake must not be used. Unavailable: it cannot be read or written.
        """
        mark = self.read_json(MARK)
        if mark is None:
            if create:
                self.write_json(MARK, {"format": FORMAT, "cluster": cluster})
            return
        if mark.get("format", 0) > FORMAT:
            raise Refused(
                f"the lake {self.where} was written by a newer version (layout {mark['format']}, ours is {FORMAT})",
                hint="update this program",
            )
        if mark.get("cluster") != cluster:
            raise Refused(
                f"the lake {self.where} belongs to another cluster ({mark.get('cluster')}, ours is {cluster})",
                hint="give each cluster a lake of its own, such as --lake '/srv/lake/cluster={cluster}'",
            )

    # ------------------------------------------------------------ documents

    def read_json(self, path: str) -> dict[str, Any] | None:
        """A document; ``None`` when there is none."""
        try:
            if self._local is not None:
                return _object((self._local / path).read_bytes(), path)
            system, base = self._arrow()
            with system.open_input_stream(f"{base}/{path}") as stream:
                return _object(stream.read(), path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unavailable("read", path, error) from error

    def write_json(self, path: str, document: Mapping[str, Any]) -> None:
        """Replace a document atomically: after a crash it is the old one or the new one."""
        self.write(path, json.dumps(document, indent=1, default=str).encode())

    def write(self, path: str, content: bytes) -> None:
        """Replace a small file atomically."""
        try:
            if self._local is None:
                system, base = self._arrow()
                with system.open_output_stream(f"{base}/{path}") as stream:
                    stream.write(content)
                return
            target = self._local / path
            target.parent.mkdir(parents=True, exist_ok=True)
            new = target.with_name(f".{target.name}.new")
            with new.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            new.replace(target)
            _sync_directory(target.parent)
        except OSError as error:
            raise self._unavailable("write", path, error) from error

    def documents(self, folder: str) -> dict[str, dict[str, Any]]:
        """Every document of a folder by its name, in order."""
        found = {}
        for path in self.files(folder):
            name = path.rpartition("/")[2]
            if name.endswith(".json") and not name.startswith("."):
                document = self.read_json(path)
                if document is not None:
                    found[name.removesuffix(".json")] = document
        return found

    # ------------------------------------------------------------ files

    def files(self, folder: str) -> list[str]:
        """Paths of every file below a folder; none when it is not there."""
        if self._local is not None:
            top = self._local / folder
            return sorted(str(path.relative_to(self._local)) for path in top.rglob("*") if path.is_file())
        from pyarrow.fs import FileSelector, FileType

        system, base = self._arrow()
        found = system.get_file_info(FileSelector(f"{base}/{folder}", allow_not_found=True, recursive=True))
        return sorted(info.path[len(base) + 1 :] for info in found if info.type == FileType.File)

    def listing(self, folder: str) -> list[tuple[str, int, float]]:
        """Path, bytes and time of the last change (seconds since 1970) of every file below a folder."""
        if self._local is not None:
            top = self._local / folder
            paths = sorted(path for path in top.rglob("*") if path.is_file())
            return [(str(path.relative_to(self._local)), path.stat().st_size, path.stat().st_mtime) for path in paths]
        from pyarrow.fs import FileSelector, FileType

        system, base = self._arrow()
        found = system.get_file_info(FileSelector(f"{base}/{folder}", allow_not_found=True, recursive=True))
        files = [info for info in found if info.type == FileType.File]
        return [
            (info.path[len(base) + 1 :], info.size, info.mtime.timestamp() if info.mtime else 0.0) for info in files
        ]

    def delete(self, path: str) -> None:
        """Delete a file, and in a local lake the directories that become empty."""
        try:
            if self._local is None:
                system, base = self._arrow()
                system.delete_file(f"{base}/{path}")
                return
            target = self._local / path
            target.unlink(missing_ok=True)
            for parent in target.parents:
                if parent == self._local or any(parent.iterdir()):
                    break
                parent.rmdir()
        except OSError as error:
            raise self._unavailable("delete", path, error) from error

    def size(self, path: str) -> int | None:
        """Bytes of a file; ``None`` when there is none."""
        if self._local is not None:
            try:
                return (self._local / path).stat().st_size
            except FileNotFoundError:
                return None
        system, base = self._arrow()
        size: int | None = system.get_file_info(f"{base}/{path}").size
        return size

    def sync(self, path: str) -> None:
        """Flush a file and its directory to the disk."""
        if self._local is None:
            return  # an object is durable when it is written
        target = self._local / path
        try:
            with target.open("rb") as file:
                os.fsync(file.fileno())
            _sync_directory(target.parent)
        except OSError as error:
            raise self._unavailable("sync", path, error) from error

    def digest(self, path: str) -> str:
        """sha256 of a file, hexadecimal."""
        total = hashlib.sha256()
        try:
            with self._open(path) as stream:
                while chunk := stream.read(_CHUNK_BYTES):
                    total.update(chunk)
        except OSError as error:
            raise self._unavailable("read", path, error) from error
        return total.hexdigest()

    @contextmanager
    def writing(self, path: str) -> Iterator[Any]:
        """A new file, open for binary writing. It is durable after ``sync``.

        Raises:
            Unavailable: it cannot be created or written. A partial file stays.
        """
        try:
            if self._local is not None:
                target = self._local / path
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("xb") as file:
                    yield file
                return
            system, base = self._arrow()
            with system.open_output_stream(f"{base}/{path}") as stream:
                yield stream
        except OSError as error:
            raise self._unavailable("write", path, error) from error

    @contextmanager
    def reading(self, path: str) -> Iterator[Any]:
        """A file, open for binary random reading.

        Raises:
            Unavailable: it cannot be read.
        """
        try:
            if self._local is not None:
                with (self._local / path).open("rb") as file:
                    yield file
                return
            system, base = self._arrow()
            with system.open_input_file(f"{base}/{path}") as stream:
                yield stream
        except OSError as error:
            raise self._unavailable("read", path, error) from error

    def _open(self, path: str) -> Any:
        if self._local is not None:
            return (self._local / path).open("rb")
        system, base = self._arrow()
        return system.open_input_stream(f"{base}/{path}")

    def _arrow(self) -> tuple[FileSystem, str]:
        if self._remote is None:
            try:
                self._remote = file_system_of(self.root)
            except (OSError, ValueError) as error:
                raise self._unavailable("open", "", error) from error
        return self._remote

    def _unavailable(self, what: str, path: str, error: Exception) -> Unavailable:
        return Unavailable(f"cannot {what} {path or 'the lake'} in {self.where}: {error}")


def folder_of(dataset: str) -> str:
    """Folder of the files of a dataset of ranges, relative to the lake. It is a table for readers of other formats."""
    return f"{dataset}/v{FORMAT}"


def _object(content: bytes, path: str) -> dict[str, Any]:
    try:
        document = json.loads(content)
    except ValueError as error:
        raise Refused(
            f"{path} of the lake is no JSON: {error}", hint="restore it, or remove it if it is ours"
        ) from None
    if not isinstance(document, dict):
        raise Refused(f"{path} of the lake is no document of ours")
    return document


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def lake_errors(lake: Lake) -> Iterator[None]:
    """Convert errors of Spark on the lake's files to ``Unavailable``."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise Unavailable(
            f"Spark could not read or write the lake {lake.where}: {cause_of(error)}",
            hint="nothing was dropped; correct it and run the command again",
        ) from error
