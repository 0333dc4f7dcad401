"""``jobmaster pipeline``: the list of its commands, and several of them in one Spark session."""

from __future__ import annotations

import click

from jobmaster.cli.lazy import lazily

COMMANDS: dict[str, tuple[str, str]] = {
    "archive": ("jobmaster.cli.pipeline.archive:archive", "Move old ranges of jobs from the master to the lake."),
    "audit": ("jobmaster.cli.pipeline.audit:audit", "Check the invariants over the whole history."),
    "doctor": ("jobmaster.cli.pipeline.doctor:doctor", "Check Java, Spark, the master and the lake."),
    "forget": ("jobmaster.cli.pipeline.forget:forget", "Remember the rows of a source no longer."),
    "ls": ("jobmaster.cli.pipeline.ls:ls", "Show what the lake holds, and the latest batches."),
    "plan": ("jobmaster.cli.pipeline.plan:plan", "Recommend how many buckets each lane and priority needs."),
    "replay": ("jobmaster.cli.pipeline.replay:replay", "Run jobs that failed again, each as a new job."),
    "rollup": ("jobmaster.cli.pipeline.rollup:rollup", "Figures by the hour, and a report to look at."),
    "run": ("jobmaster.cli.pipeline.run:run", "Run several steps in one Spark session."),
    "stream": ("jobmaster.cli.pipeline.stream:stream", "Copy what ends in the master to the lake, each job once."),
    "submit": ("jobmaster.cli.pipeline.submit:submit", "Make jobs of a file, a table or a query: one row, one job."),
    "vacuum": ("jobmaster.cli.pipeline.vacuum:vacuum", "Delete what runs that did not end have left in the lake."),
}
"""Name -> (module:attribute, the line in the list of commands)."""


@click.group("pipeline", cls=lazily(COMMANDS), no_args_is_help=True)
def pipeline_group() -> None:
    """Move jobs and their history by the million, with Spark."""
