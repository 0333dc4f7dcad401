"""The files of the lake as Iceberg tables, for engines that read these: metadata beside the files, and no copy of a row.

The package ``pyiceberg`` writes manifests and metadata. There is no catalog: ``metadata/version-hint.text`` names the current
``v<number>.metadata.json``, as in the file system tables of Iceberg, and it is replaced last. The manifest of the lake
decides which files count; a change of a table is one snapshot, so a table that is behind is brought up to date by the next
call.

The tables have no partitions: a file does not hold the day of its path. Readers leave files out by the least and greatest
time of each, the only values that the metadata has; so what is forgotten leaves nothing there.

The last ``KEPT_VERSIONS`` earlier tables stay readable, for programs that have begun with one. What only older ones need is
deleted, so the directory does not grow with the number of changes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from jobmaster.model.archive import LakeFile
from jobmaster.model.errors import Unavailable
from jobmaster.pipeline.lake.lake import Lake, folder_of
from jobmaster.pipeline.lake.schema import SCHEMAS, TIME
from jobmaster.pipeline.lake.table_packages import ICEBERG, require_table_package

if TYPE_CHECKING:
    from pyiceberg.table import Table, Transaction
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot
    from pyiceberg.types import IcebergType

DOCUMENT = "_manifest/iceberg.json"
"""The mark of a lake whose Iceberg tables are kept up to date."""
KEPT_VERSIONS = 20
"""Earlier versions of a table whose metadata is kept."""
_HINT = "version-hint.text"
_VERSION = re.compile(r"v(\d+)\.metadata\.json$")
_PROPERTIES = {
    "write.metadata.metrics.default": "none",
    # The lake deletes its files by its own rules.
    "gc.enabled": "false",
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": str(KEPT_VERSIONS),
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": str(KEPT_VERSIONS),
    "history.expire.min-snapshots-to-keep": str(KEPT_VERSIONS + 1),
}


def write(lake: Lake, files: Iterable[LakeFile]) -> Mapping[str, int]:
    """Let each table have just these files; returns the number of files by dataset.

    Raises:
        Refused: the package is not installed. Unavailable: the metadata cannot be read or written.
    """
    require_table_package(ICEBERG)
    by_dataset: dict[str, list[LakeFile]] = {dataset: [] for dataset in SCHEMAS}
    for file in files:
        by_dataset[file.dataset].append(file)
    for dataset, wanted in by_dataset.items():
        try:
            _write(lake, dataset, wanted)
        except _foreign_errors() as error:
            said = " ".join(str(error).split()) or type(error).__name__
            raise Unavailable(
                f"the Iceberg table {folder_of(dataset)} of the lake {lake.where} cannot be written: {said}",
                hint=f"run jobmaster pipeline tables --format iceberg again; if it ends in the same way, "
                f"{_mending(lake, dataset)}",
            ) from error
    return {dataset: len(wanted) for dataset, wanted in by_dataset.items()}


def _foreign_errors() -> tuple[type[Exception], ...]:
    """What the package raises; its errors have no class in common."""
    from pyarrow import ArrowException
    from pyiceberg import exceptions

    own = [one for one in vars(exceptions).values() if isinstance(one, type) and issubclass(one, Exception)]
    # The others: of its decoders, over files that are cut or no metadata.
    return (*own, ArrowException, OSError, ValueError, LookupError, EOFError, TypeError, NotImplementedError)


def _mending(lake: Lake, dataset: str) -> str:
    """How to have a table whose metadata is broken again."""
    folder = lake.url(f"{folder_of(dataset)}/metadata").removeprefix("file://")
    return (
        f"delete the directory {folder} and run jobmaster pipeline tables --format iceberg: it makes the table anew; "
        "the files of the lake are not changed by it"
    )


def _write(lake: Lake, dataset: str, files: list[LakeFile]) -> None:
    from pyiceberg.io.pyarrow import parquet_files_to_data_files

    folder = folder_of(dataset)
    number = _current(lake, dataset)
    if number is None and not files:
        return
    table = _table(lake, dataset, number)
    place = table.location()
    columns = [column for column in _columns(dataset) if column not in table.schema().column_names]
    wanted = {f"{place}/{file.path.removeprefix(f'{folder}/')}" for file in files}
    known = {task.file.file_path: task.file for task in table.scan().plan_files()}
    gone, new = known.keys() - wanted, sorted(wanted - known.keys())
    if number is not None and not gone and not new and not columns:
        return
    with table.transaction() as change:
        if columns:
            _add_columns(change, dataset, columns)
        if {**table.properties, **_PROPERTIES} != table.properties:
            change.set_properties(_PROPERTIES)
        if gone or new:
            changes = change.update_snapshot()
            with changes.overwrite() if gone else changes.merge_append() as snapshot:
                for path in gone:
                    snapshot.delete_data_file(known[path])
                for file in parquet_files_to_data_files(table.io, change.table_metadata, iter(new)):
                    snapshot.append_data_file(file)
        _expire(change)
    _sweep(lake, folder, table)


def _add_columns(change: Transaction, dataset: str, columns: Iterable[str]) -> None:
    """Columns that the lake has got since the table was made; they stand at the end."""
    kinds = _columns(dataset)
    with change.update_schema() as schema:
        for column in columns:
            schema.add_column(column, kinds[column])


def _expire(change: Transaction) -> None:
    """Snapshots before those of the kept versions are no part of the table any more."""
    from pyiceberg.table.update.snapshot import ExpireSnapshots

    old = [one.snapshot_id for one in change.table_metadata.snapshots[: -(KEPT_VERSIONS + 1)]]
    if old:
        ExpireSnapshots(change).by_ids(old).commit()


def _sweep(lake: Lake, folder: str, table: Table) -> None:
    """Delete the metadata that no kept version needs, also what a run that was killed has left."""
    found = _VERSION.search(table.metadata_location)
    assert found is not None
    oldest = int(found[1]) - KEPT_VERSIONS
    needed = {path for one in table.metadata.snapshots for path in _paths(table, one)}
    for path in lake.files(f"{folder}/metadata"):
        version = _VERSION.search(path)
        if (version is not None and int(version[1]) < oldest) or (
            path.endswith(".avro") and path.removeprefix(f"{folder}/") not in needed
        ):
            lake.delete(path)


def _paths(table: Table, snapshot: Snapshot, *, own: bool = False) -> list[str]:
    """Its list of manifests and these, below the directory of the table; with ``own`` those that its commit has written."""
    manifests = [
        one.manifest_path
        for one in snapshot.manifests(table.io)
        if not own or one.added_snapshot_id == snapshot.snapshot_id
    ]
    return [path.removeprefix(f"{table.location()}/") for path in (snapshot.manifest_list, *manifests)]


def _current(lake: Lake, dataset: str) -> int | None:
    """Number of the present metadata; ``None``: there is no table.

    Raises:
        Unavailable: the file that names it is no number, or names a file that is not there.
    """
    folder = folder_of(dataset)
    path = f"{folder}/metadata/{_HINT}"
    if lake.size(path) is None:
        return None
    with lake.reading(path) as stream:
        content = stream.read()
    if not content.strip().isdigit():
        raise Unavailable(
            f"{path} of the lake {lake.where} has no number: {content[:40]!r}", hint=_mending(lake, dataset)
        )
    number = int(content)
    if lake.size(_metadata(folder, number)) is None:
        raise Unavailable(
            f"{path} of the lake {lake.where} names {_metadata(folder, number)}, which is not there",
            hint=f"restore that file, or {_mending(lake, dataset)}",
        )
    return number


def _table(lake: Lake, dataset: str, number: int | None) -> Table:
    """The table of that number; without one a new table, which the lake has when it is committed."""
    from pyiceberg.catalog.noop import NoopCatalog
    from pyiceberg.io import load_file_io
    from pyiceberg.table import CommitTableResponse, Table
    from pyiceberg.table.metadata import TableMetadataUtil
    from pyiceberg.table.update import update_table_metadata

    folder = folder_of(dataset)
    place = lake.url(folder) if lake.local is None else str(lake.local / folder)

    class FolderCatalog(NoopCatalog):
        """Its one table is the folder. One process at a time writes it: the caller has the lock."""

        def commit_table(self, table: Table, requirements: Any, updates: Any) -> CommitTableResponse:
            for requirement in requirements:
                requirement.validate(table.metadata)
            before = None if number is None else table.metadata_location
            made = update_table_metadata(table.metadata, updates, metadata_location=before)
            known = {one.snapshot_id for one in table.metadata.snapshots}
            for snapshot in made.snapshots:
                if snapshot.snapshot_id not in known:
                    for path in _paths(table, snapshot, own=True):
                        lake.sync(f"{folder}/{path}")
            following = (number or 0) + 1
            lake.write(_metadata(folder, following), made.model_dump_json().encode())
            lake.write(f"{folder}/metadata/{_HINT}", str(following).encode())
            return CommitTableResponse(metadata=made, metadata_location=f"{place}/metadata/v{following}.metadata.json")

    if number is None:
        metadata = _new_metadata(dataset, place)
    else:
        with lake.reading(_metadata(folder, number)) as stream:
            metadata = TableMetadataUtil.parse_raw(stream.read().decode())
    location = f"{place}/metadata/v{number or 0}.metadata.json"
    io = load_file_io({}, location)
    return Table(("lake", dataset), metadata, location, io, FolderCatalog("lake"))


def _metadata(folder: str, number: int) -> str:
    return f"{folder}/metadata/v{number}.metadata.json"


def _columns(dataset: str) -> dict[str, IcebergType]:
    """The columns of the lake's files by their names, in order."""
    from pyiceberg import types

    kinds: Mapping[str, IcebergType] = {
        "bigint": types.LongType(),
        "boolean": types.BooleanType(),
        "int": types.IntegerType(),
        "smallint": types.IntegerType(),
        "string": types.StringType(),
        "timestamp": types.TimestamptzType(),
    }
    columns = (column.split() for column in SCHEMAS[dataset].split(", "))
    return {name: kinds[kind] for name, kind in columns}


def _new_metadata(dataset: str, place: str) -> TableMetadata:
    from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import new_table_metadata
    from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
    from pyiceberg.types import NestedField

    columns = enumerate(_columns(dataset).items(), start=1)
    schema = Schema(*(NestedField(number, name, kind) for number, (name, kind) in columns))
    properties = {
        **_PROPERTIES,
        # The files have no numbers of columns.
        "schema.name-mapping.default": schema.name_mapping.model_dump_json(),
        f"write.metadata.metrics.column.{TIME[dataset]}": "full",
    }
    return new_table_metadata(schema, UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, place, properties)
