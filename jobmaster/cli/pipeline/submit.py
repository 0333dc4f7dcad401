"""``jobmaster pipeline submit``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from jobmaster.cli.pipeline.step import note_batch, step

if TYPE_CHECKING:
    from jobmaster.pipeline.context import Outcome, PipelineRun


@step("submit")
@click.argument("source", required=False)
@click.option("--handler", required=True, help="The handler of the jobs.")
@click.option(
    "--key", "keys", multiple=True, required=True, metavar="COLUMN", help="What makes a row unique; * = the whole row."
)
@click.option("--format", "kind", type=click.Choice(["csv", "json", "parquet", "orc"]), help="Default: by the name.")
@click.option("--table", help="Table of the database that SOURCE names.")
@click.option("--sql", help="A query: of that database, or over the files (called source) and the views.")
@click.option("--view", "views", multiple=True, metavar="NAME=PATH", help="More files that the query names.")
@click.option("--reader", "reader", multiple=True, metavar="KEY=VALUE", help="Option of Spark's reader, such as sep=;")
@click.option("--map", "arguments", multiple=True, metavar="ARG=EXPR", help="Argument from a column or expression.")
@click.option("--due", metavar="EXPR", help="Due time from a column or expression.")
@click.option("--priority-from", metavar="EXPR", help="Priority from a column or expression.")
@click.option("--lane-from", metavar="EXPR", help="Lane from a column or expression.")
@click.option("--at", help="Due time of all jobs, such as 2030-01-31T12:00:00Z.")
@click.option("--priority", type=click.Choice(["critical", "high", "medium", "low", "very_low"]))
@click.option("--lane")
@click.option("--tag", "tags", multiple=True)
@click.option(
    "--batch", help="Name of a batch that is handed in once: its rows are remembered as long as their jobs are kept."
)
@click.option("--remember", metavar="NAME", help="Name of data that is handed in again and again: no row twice, ever.")
@click.option("--as-of", help="Time part of the ids of a new batch.  [default: now]")
@click.option("--rate", type=click.IntRange(1), metavar="N", help="At most so many jobs a second, all tasks together.")
@click.option("--tasks", type=click.IntRange(1), help="At most so many connections write.")
@click.option("--rejects", metavar="PATH", help="Where refused rows go.  [default: <lake>/rejects]")
@click.option("--on-duplicate", type=click.Choice(["ignore", "fail"]), default="ignore", show_default=True)
@click.option("--allow-unregistered", is_flag=True, help="Also for a handler that no agent has published.")
def submit(run: PipelineRun, **words: Any) -> Outcome:
    """Make jobs of a file, a table or a query: one row, one job.

    SOURCE is a path (CSV, JSON, Parquet, ORC; directories and * too) or postgresql://... Arguments come from columns of
    their name, or as --map says. Every row is checked against the handler's published signature; what does not fit goes to
    the rejects with its reason, the rest is written. Handed in again, the same rows insert nothing: they are remembered by
    their keys under the name of the handler and SOURCE (or --remember), also when their jobs are long gone. With --batch or
    --as-of nothing is remembered but the jobs themselves.

    \b
    Examples:
      jobmaster pipeline submit images.csv --handler images.resize --key path
      jobmaster pipeline submit orders.parquet --handler bill --key id --map "amount=cast(total * 100 as int)" --due due
      jobmaster pipeline submit postgresql://host/shop --table orders --handler bill --key id --rate 5000 --dry-run
    """
    from jobmaster.pipeline.steps.inputs import Input
    from jobmaster.pipeline.steps.mapping import Wanted, parse_pairs
    from jobmaster.pipeline.steps.submit import Order
    from jobmaster.pipeline.steps.submit import submit as carry_out

    options = {
        "priority": words["priority"],
        "lane": words["lane"],
        "dueAt": words["at"],
        "asOf": words["as_of"],
        "headers": json.dumps({"tags": words["tags"]}) if words["tags"] else None,
        "rowsPerSecond": words["rate"],
        "rejects": words["rejects"],
        "remember": words["remember"],
        "onDuplicate": words["on_duplicate"],
        "allowUnregistered": "true" if words["allow_unregistered"] else None,
    }
    reader = parse_pairs(words["reader"], "--reader")
    order = Order(
        Input(words["source"], words["kind"], words["table"], words["sql"], words["views"], reader),
        words["handler"],
        Wanted(
            words["keys"],
            parse_pairs(words["arguments"], "--map"),
            words["due"],
            words["priority_from"],
            words["lane_from"],
        ),
        words["batch"],
        {name: str(value) for name, value in options.items() if value is not None},
        words["tasks"],
    )
    return note_batch(run, "pipeline submit", carry_out(run, order))
