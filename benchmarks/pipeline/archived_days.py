"""Many archived days from one: the files of a range are copied with all times and ids earlier, and entered into the manifest.

So a lake of a hundred million jobs takes minutes. Only the checksums of the manifest's rows are not those of the copies; an
audit compares digests, which are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncpg

from jobmaster.clock import new_id
from jobmaster.pipeline.lake.lake import Lake

if TYPE_CHECKING:
    import pyarrow as pa

_DAY_US = 86_400_000_000
_THREADS = 2
_IDS = {"jobs": "id", "attempts": "job_id"}
_TIME_DIGITS, _REST = 12, 14
"""Hexadecimal digits of the time in an id, and where the rest begins in its text: after the time and two dashes."""
_DAY = re.compile(r"day=(\d{4}-\d{2}-\d{2})")
_ENTER = """
INSERT INTO archive_manifest (name, attempts, state, lo, hi, moved, rows, checksum, attempt_rows, attempt_checksum, run_id,
                              lake, format, files, ended_from, ended_to, detached_at, exported_at, verified_at, published_at,
                              dropped_at)
SELECT name || '_' || $2::integer, attempts || '_' || $2::integer, state,
       uuid_floor(uuid_moment(lo) - make_interval(days => $2::integer)),
       uuid_floor(uuid_moment(hi) - make_interval(days => $2::integer)), moved, rows, checksum, attempt_rows,
       attempt_checksum, $3, lake, format, $4::text::jsonb, ended_from - make_interval(days => $2::integer),
       ended_to - make_interval(days => $2::integer), detached_at, exported_at, verified_at, published_at, dropped_at
FROM archive_manifest WHERE name = $1
"""


async def copy_days(connection: asyncpg.Connection[asyncpg.Record], where: Path, days: Sequence[int]) -> None:
    """Enter copies of the largest archived range into the lake and the manifest, so many days earlier each.

    Args:
        connection: of a superuser; its search path is the cluster's schema.
    """
    row = await connection.fetchrow(
        "SELECT name, files::text FROM archive_manifest WHERE state = 'DROPPED' ORDER BY rows DESC NULLS LAST LIMIT 1"
    )
    assert row is not None
    lake, files = Lake(str(where)), json.loads(row["files"])
    await connection.execute("SET session_replication_role = replica")  # a range goes through its states else
    with ThreadPoolExecutor(_THREADS) as threads:
        copies = threads.map(lambda day: _copied(lake, where, files, day), days)
        for day, (run_id, copied) in zip(days, copies, strict=True):
            await connection.execute(_ENTER, row["name"], day, run_id, json.dumps(copied))
    await connection.execute("RESET session_replication_role")


def _copied(lake: Lake, where: Path, files: Sequence[dict[str, Any]], day: int) -> tuple[str, list[dict[str, Any]]]:
    """The files of a range, so many days earlier; the run and the entries of the manifest."""
    from pyarrow import parquet

    run_id, found = new_id().hex(), []
    for number, file in enumerate(files):
        table = _earlier(parquet.ParquetFile(where / file["path"]).read(), _IDS[file["dataset"]], day)
        (of_day,) = _DAY.findall(file["path"])
        moved = date.fromisoformat(of_day) - timedelta(days=day)
        path = f"{file['dataset']}/v1/run={run_id}/day={moved}/part-{number}.parquet"
        (where / path).parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(table, where / path, compression="zstd", use_dictionary=["state", "lane", "handler"])
        found.append({**file, "path": path, "bytes": lake.size(path), "sha256": lake.digest(path)})
    return run_id, found


def _earlier(table: pa.Table, key: str, day: int) -> pa.Table:
    """Every time of a table, and that in its ids, so many days earlier."""
    import pyarrow as pa
    from pyarrow import compute as pc

    for place, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            moved = pc.subtract(table[field.name].cast(pa.int64()), day * _DAY_US).cast(field.type)
            table = table.set_column(place, field, moved)
    ids = table[key].combine_chunks()
    return table.set_column(table.schema.get_field_index(key), table.schema.field(key), _earlier_ids(ids, day))


def _earlier_ids(ids: pa.Array, day: int) -> pa.Array:
    import numpy as np
    import pyarrow as pa
    from pyarrow import compute as pc

    from jobmaster.pipeline.datasource.derived_columns import times_of_ids

    ms = (times_of_ids(ids).cast(pa.int64()).to_numpy() - day * _DAY_US) // 1000
    digits = ms.astype(">u8").view(np.uint8).reshape(-1, 8)[:, 2:].tobytes().hex().encode()
    times = pa.array(np.frombuffer(digits, f"S{_TIME_DIGITS}")).cast(pa.string())
    high, low = (pc.utf8_slice_codeunits(times, start, stop) for start, stop in ((0, 8), (8, _TIME_DIGITS)))
    return pc.binary_join_element_wise(high, low, pc.utf8_slice_codeunits(ids, _REST), "-")
