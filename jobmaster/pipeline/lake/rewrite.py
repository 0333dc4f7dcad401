"""Rewrites the files of an archived range without some jobs, and verifies the new files before anything counts them.

Used to forget jobs, and to merge small files. Runs in the driver, one range at a time, with Arrow. The files that are read
are compared with the manifest, in count and checksum; the new ones are read again and must hold exactly the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from jobmaster.model.archive import ArchiveRange, LakeFile, Measure
from jobmaster.model.errors import Refused
from jobmaster.pipeline.datasource.range_scan import conformed
from jobmaster.pipeline.lake.lake import Lake
from jobmaster.pipeline.lake.parquet_export import PartFiles, folder_of
from jobmaster.pipeline.lake.schema import SCHEMAS, dataset_schema
from jobmaster.pipeline.lake.verify import checksum, measure_file

if TYPE_CHECKING:
    import pyarrow as pa

Forgets = Callable[["pa.RecordBatch"], "pa.Array"]
"""From a batch of jobs to a flag for each of them: whether it is to be forgotten."""
_JOB_ID = {"jobs": "id", "attempts": "job_id", "logs": "job_id"}


class Rewritten(NamedTuple):
    """New files of a range."""

    files: tuple[LakeFile, ...]
    measure: Measure
    forgotten: int
    """Jobs that the new files lack."""


def rewrite(lake: Lake, found: ArchiveRange, run_id: str, forgets: Forgets) -> Rewritten:
    """Write the files of a new run, one for each dataset and day. They are invisible until the manifest names the run.

    Raises:
        Refused: the files of the range are not as they were verified, or the new ones do not hold what they must.
        Unavailable: the lake cannot be read or written.
    """
    assert found.measure is not None
    pass_ = _Pass(lake, found, forgets)
    paths = []
    for dataset in SCHEMAS:  # jobs first: they choose the rows of the others
        files = PartFiles(lake, dataset, run_id, "part-00000.parquet")
        paths += [(dataset, path) for path in files.write(pass_.kept(dataset))]
    read = pass_.read
    if (*read["jobs"], *read["attempts"]) != msgspec.structs.astuple(found.measure):
        raise Refused(
            f"the files of {found.name} do not hold what the manifest says; they stay as they are",
            hint="jobmaster pipeline audit names the file; restore it from a copy",
        )
    files_, sums = [], dict.fromkeys(SCHEMAS, (0, 0))
    for dataset, path in paths:
        rows, total = measure_file(lake, dataset, path)
        lake.sync(path)
        files_.append(LakeFile(dataset, path, rows, lake.size(path) or 0, lake.digest(path)))
        sums[dataset] = (sums[dataset][0] + rows, sums[dataset][1] + total)
    for dataset in SCHEMAS:
        expected = pass_.stays[dataset]
        if sums[dataset] != expected:
            raise Refused(
                f"the new files of {found.name} hold {sums[dataset][0]} rows of {dataset}, {expected[0]} were written",
                hint="look at the disk of the lake, then run the command again; the files in use are unchanged",
            )
    return Rewritten(tuple(files_), Measure(*sums["jobs"], *sums["attempts"]), pass_.forgotten)


def count(lake: Lake, found: ArchiveRange, forgets: Forgets) -> int:
    """How many jobs ``rewrite`` would leave out."""
    pass_ = _Pass(lake, found, forgets)
    for _ in pass_.kept("jobs"):
        pass
    return pass_.forgotten


def delete_run(lake: Lake, run_id: str) -> None:
    """Delete every file of a run."""
    for dataset in SCHEMAS:
        for path in lake.files(folder_of(dataset, run_id)):
            lake.delete(path)


class _Pass:
    """One pass over the files of a range. It counts rows and checksums of what was read and of what stays."""

    def __init__(self, lake: Lake, found: ArchiveRange, forgets: Forgets) -> None:
        self._lake = lake
        self._found = found
        self._forgets = forgets
        self._ids: set[str] = set()
        self.read = dict.fromkeys(SCHEMAS, (0, 0))
        """By the columns of the files, which an earlier version may have written."""
        self.stays = dict.fromkeys(SCHEMAS, (0, 0))
        """By all columns."""
        self.forgotten = 0
        """Jobs that are left out."""

    def kept(self, dataset: str) -> Iterator[pa.RecordBatch]:
        """The rows of a dataset that stay, with all columns; those of jobs are to be read first."""
        import pyarrow as pa
        from pyarrow import compute as pc
        from pyarrow import parquet

        schema = dataset_schema(dataset)
        for file in self._found.files:
            if file.dataset != dataset:
                continue
            with self._lake.reading(file.path) as stream:
                for batch in parquet.ParquetFile(stream).iter_batches(use_threads=False):
                    whole = batch if batch.schema.names == schema.names else conformed(batch, schema)
                    ids = whole.column(_JOB_ID[dataset])
                    chosen = (
                        self._forgets(whole)
                        if dataset == "jobs"
                        else pc.is_in(ids, pa.array(sorted(self._ids), pa.string()))
                    )
                    out = whole.filter(chosen)
                    if dataset == "jobs":
                        self._ids.update(out.column("id").to_pylist())
                        self.forgotten += len(out)
                    self._count(dataset, batch, whole, out)
                    yield whole.filter(pc.invert(chosen)) if len(out) else whole

    def _count(self, dataset: str, batch: pa.RecordBatch, whole: pa.RecordBatch, out: pa.RecordBatch) -> None:
        """Count what stays as the difference, so that a row which is neither kept nor left out is missed."""
        read = _sums(batch, dataset)
        of_whole = read if whole is batch else _sums(whole, dataset)
        for sums, (rows, total) in ((self.read, read), (self.stays, of_whole)):
            sums[dataset] = (sums[dataset][0] + rows, sums[dataset][1] + total)
        rows, total = _sums(out, dataset)
        self.stays[dataset] = (self.stays[dataset][0] - rows, self.stays[dataset][1] - total)


def _sums(batch: pa.RecordBatch, dataset: str) -> tuple[int, int]:
    return (len(batch), checksum(batch, dataset)) if len(batch) else (0, 0)
