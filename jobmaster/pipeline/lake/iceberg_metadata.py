"""The files of the lake as Iceberg tables, for engines that read these: metadata beside the files, and no copy of a row.

The package ``pyiceberg`` writes manifests and metadata. There is no catalog: ``metadata/version-hint.text`` names the current
``v<number>.metadata.json``, as in the file system tables of Iceberg, and it is replaced last. The manifest of the lake
decides which files count; a change of a table is one snapshot, so a table that is behind is brought up to date by the next
call.

The tables have no partitions: a file does not hold the day of its path. Readers leave files out by the least and greatest
time of each, the only values that the metadata has; so what is forgotten leaves nothing there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from jobmaster.distribution import install_command
from jobmaster.model.archive import LakeFile
from jobmaster.model.errors import Refused, Unavailable
from jobmaster.pipeline.lake.lake import Lake, folder_of
from jobmaster.pipeline.lake.schema import SCHEMAS, TIME

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata

DOCUMENT = "_manifest/iceberg.json"
"""The mark of a lake whose Iceberg tables are kept up to date."""
_HINT = "version-hint.text"


def require_pyiceberg() -> None:
    """``Refused`` when the package is not installed."""
    if find_spec("pyiceberg") is None:
        raise Refused(
            "the package pyiceberg is not installed, and the lake has Iceberg tables, or is to have them",
            hint=f"{install_command('iceberg')}; to leave the tables as they are: "
            "jobmaster pipeline tables --format iceberg --stop",
        )


def write(lake: Lake, files: Iterable[LakeFile]) -> Mapping[str, int]:
    """Let each table have just these files; returns the number of files by dataset.

    Raises:
        Refused: the package is not installed. Unavailable: the metadata cannot be read or written.
    """
    require_pyiceberg()
    from pyiceberg.exceptions import CommitFailedException, NoSuchTableError

    by_dataset: dict[str, list[LakeFile]] = {dataset: [] for dataset in SCHEMAS}
    for file in files:
        by_dataset[file.dataset].append(file)
    for dataset, wanted in by_dataset.items():
        try:
            _write(lake, dataset, wanted)
        except (CommitFailedException, NoSuchTableError, OSError, ValueError) as error:
            raise Unavailable(
                f"the Iceberg table {folder_of(dataset)} of the lake {lake.where} cannot be written: {error}",
                hint="run jobmaster pipeline tables --format iceberg again; the files of the lake are not changed by it",
            ) from error
    return {dataset: len(wanted) for dataset, wanted in by_dataset.items()}


def _write(lake: Lake, dataset: str, files: list[LakeFile]) -> None:
    from pyiceberg.io.pyarrow import parquet_files_to_data_files

    folder = folder_of(dataset)
    number = _current(lake, folder)
    if number is None and not files:
        return
    table = _table(lake, dataset, number)
    place = table.location()
    wanted = {f"{place}/{file.path.removeprefix(f'{folder}/')}" for file in files}
    known = {task.file.file_path: task.file for task in table.scan().plan_files()}
    gone, new = known.keys() - wanted, sorted(wanted - known.keys())
    if number is not None and not gone and not new:
        return
    with table.transaction() as change:
        changes = change.update_snapshot()
        with changes.overwrite() if gone else changes.fast_append() as snapshot:
            for path in gone:
                snapshot.delete_data_file(known[path])
            for file in parquet_files_to_data_files(table.io, change.table_metadata, iter(new)):
                snapshot.append_data_file(file)


def _current(lake: Lake, folder: str) -> int | None:
    """Number of the present metadata; ``None``: there is no table."""
    path = f"{folder}/metadata/{_HINT}"
    if lake.size(path) is None:
        return None
    with lake.reading(path) as stream:
        return int(stream.read())


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
            made = update_table_metadata(table.metadata, updates)
            following = (number or 0) + 1
            for path in lake.files(f"{folder}/metadata"):
                if path.endswith(".avro"):
                    lake.sync(path)
            lake.write(_metadata(folder, following), made.model_dump_json().encode())
            lake.write(f"{folder}/metadata/{_HINT}", str(following).encode())
            return CommitTableResponse(metadata=made, metadata_location=f"{place}/{following}")

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


def _new_metadata(dataset: str, place: str) -> TableMetadata:
    from pyiceberg import types
    from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import new_table_metadata
    from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

    kinds: Mapping[str, Any] = {
        "bigint": types.LongType(),
        "boolean": types.BooleanType(),
        "int": types.IntegerType(),
        "smallint": types.IntegerType(),
        "string": types.StringType(),
        "timestamp": types.TimestamptzType(),
    }
    columns = [column.split() for column in SCHEMAS[dataset].split(", ")]
    schema = Schema(
        *(types.NestedField(number, name, kinds[kind]) for number, (name, kind) in enumerate(columns, start=1))
    )
    properties = {
        # The files have no numbers of columns.
        "schema.name-mapping.default": schema.name_mapping.model_dump_json(),
        "write.metadata.metrics.default": "none",
        f"write.metadata.metrics.column.{TIME[dataset]}": "full",
        # The lake deletes its files by its own rules.
        "gc.enabled": "false",
    }
    return new_table_metadata(schema, UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, place, properties)
