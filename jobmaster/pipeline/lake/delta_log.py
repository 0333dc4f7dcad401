"""The files of the lake as Delta tables, for engines that read these: a log beside the files, and no copy of a row.

The package ``deltalake`` writes the log. The manifest decides which files count; the log follows it, in one commit for each
dataset, so a log that is behind is brought up to date by the next call.

A commit adds the files that are new and removes those that are gone, and names no other file. The protocol of Delta forbids a
commit that adds and removes the same file: Spark takes such a file for removed, ``deltalake`` for added.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any

from jobmaster.clock import SystemClock
from jobmaster.model.archive import LakeFile
from jobmaster.model.errors import Unavailable
from jobmaster.pipeline.lake.lake import Lake, folder_of
from jobmaster.pipeline.lake.schema import SCHEMAS, TIME, dataset_schema
from jobmaster.pipeline.lake.table_packages import DELTA, require_table_package

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction, RemoveAction

DOCUMENT = "_manifest/delta.json"
"""The mark of a lake whose Delta tables are kept up to date."""
_CHECKPOINT_COMMITS = 100
"""``deltalake`` writes a checkpoint after so many commits by itself."""
_PROPERTIES = {
    # The lake deletes its files by its own rules; a VACUUM of the table would take those that the log does not name yet.
    "delta.deletedFileRetentionDuration": "interval 36500 days",
}


def write(lake: Lake, files: Iterable[LakeFile]) -> Mapping[str, int]:
    """Let each table have just these files; returns the number of files by dataset.

    Raises:
        Refused: the package is not installed, or too old. Unavailable: the log cannot be read or written, or another program
            writes it.
    """
    require_table_package(DELTA)
    from deltalake.exceptions import DeltaError

    by_dataset: dict[str, list[LakeFile]] = {dataset: [] for dataset in SCHEMAS}
    for file in files:
        by_dataset[file.dataset].append(file)
    for dataset, wanted in by_dataset.items():
        try:
            _write(lake, dataset, wanted)
        except (DeltaError, OSError) as error:
            raise Unavailable(
                f"the Delta table {folder_of(dataset)} of the lake {lake.where} cannot be written: {error}",
                hint="run jobmaster pipeline tables again; the files of the lake are not changed by it",
            ) from error
    return {dataset: len(wanted) for dataset, wanted in by_dataset.items()}


def _write(lake: Lake, dataset: str, files: list[LakeFile]) -> None:
    from deltalake import DeltaTable, Schema
    from deltalake.transaction import create_table_with_add_actions

    place = lake.url(folder_of(dataset)) if lake.local is None else str(lake.local / folder_of(dataset))
    schema = Schema.from_arrow(_table_schema(dataset))
    if not DeltaTable.is_deltatable(place):
        if files:
            create_table_with_add_actions(
                place,
                schema,
                list(_actions(lake, dataset, files)),
                partition_by=["day"],
                name=f"jobmaster {dataset}",
                configuration=_PROPERTIES,
            )
        return
    table = DeltaTable(place)
    _leave_overlaps_behind(lake, dataset, table)
    there = {field.name for field in table.schema().fields}
    if columns := [field for field in schema.fields if field.name not in there]:
        table.alter.add_columns(columns)  # those that the lake has got since the table was made
    known = _known(table)
    wanted = {_relative(dataset, file): file for file in files}
    new = [file for path, file in wanted.items() if path not in known]
    gone = [removal for path, removal in known.items() if path not in wanted]
    if new or gone:
        # Mode overwrite would remove every file of the table, also those that stay.
        table.create_write_transaction([*_actions(lake, dataset, new), *gone], "append", schema, ["day"])


def _leave_overlaps_behind(lake: Lake, dataset: str, table: DeltaTable) -> None:
    """A checkpoint behind commits of mode overwrite, which earlier versions wrote, so that no reader needs them."""
    last = (lake.read_json(f"{folder_of(dataset)}/_delta_log/_last_checkpoint") or {}).get("version", -1)
    commits = [one for one in table.history(_CHECKPOINT_COMMITS) if one["version"] > last]
    if any((one.get("operationParameters") or {}).get("mode") == "Overwrite" for one in commits):
        table.create_checkpoint()


def _known(table: DeltaTable) -> dict[str, RemoveAction]:
    """The files of the table by their paths, each with the action that removes it."""
    import pyarrow as pa
    from deltalake.transaction import RemoveAction

    now_ms = SystemClock().wall_us() // 1000
    return {
        row["path"]: RemoveAction(row["path"], True, now_ms, row["size_bytes"], {"day": _day(row["partition"])})
        for row in pa.table(table.get_add_actions()).to_pylist()
    }


def _day(partition: Mapping[str, date | None] | None) -> str | None:
    day = (partition or {}).get("day")
    return None if day is None else day.isoformat()


def _table_schema(dataset: str) -> pa.Schema:
    """The columns of the files, and the day in their paths."""
    import pyarrow as pa

    return dataset_schema(dataset).append(pa.field("day", pa.date32()))


def _relative(dataset: str, file: LakeFile) -> str:
    return file.path.removeprefix(f"{folder_of(dataset)}/")


def _actions(lake: Lake, dataset: str, files: list[LakeFile]) -> Iterator[AddAction]:
    from deltalake.transaction import AddAction

    changed = {path: moment for path, _, moment in lake.listing(folder_of(dataset))}
    for file in files:
        yield AddAction(
            path=_relative(dataset, file),
            size=file.bytes,
            partition_values={"day": file.path.split("/day=")[1][:10]},
            modification_time=int(changed.get(file.path, 0.0) * 1000),
            data_change=True,
            stats=json.dumps(_statistics(lake, dataset, file)),
        )


def _statistics(lake: Lake, dataset: str, file: LakeFile) -> dict[str, Any]:
    """What a reader needs to leave the file out: rows, and the least and greatest time, by the footer of the file."""
    from pyarrow import parquet

    column = TIME[dataset]
    with lake.reading(file.path) as stream:
        found = parquet.ParquetFile(stream).metadata
    at = found.schema.names.index(column)
    groups = [found.row_group(number).column(at).statistics for number in range(found.num_row_groups)]
    times = [value for one in groups if one is not None and one.has_min_max for value in (one.min, one.max)]
    if not times or len(times) < 2 * len(groups):
        return {"numRecords": file.rows}
    # The log has milliseconds: the greatest value is rounded up.
    return {
        "numRecords": file.rows,
        "minValues": {column: _milliseconds(min(times))},
        "maxValues": {column: _milliseconds(max(times) + timedelta(microseconds=999))},
    }


def _milliseconds(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03}Z"
