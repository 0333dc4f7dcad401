"""``jobmaster job submit``: the arguments and options of a job on the command line, and the wait for its end."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jobmaster.cli.commands.job_inputs import DURATION, PRIORITIES, moment, with_cluster
from jobmaster.cli.commands.job_rows import job_record
from jobmaster.cli.completion import Known, known
from jobmaster.cli.invocation import Invocation, pass_invocation
from jobmaster.cli.running import run_async
from jobmaster.cli.tables import emit_record
from jobmaster.client.signals.wait import signal
from jobmaster.model.errors import InputError
from jobmaster.model.ids import text
from jobmaster.model.job import REQUESTABLE, JobState
from jobmaster.model.job_view import JobView

if TYPE_CHECKING:
    from jobmaster.client.cluster import Cluster
    from jobmaster.handlers import Unique


@click.command("submit")
@click.argument("handler", shell_complete=known(Known.HANDLERS))
@click.argument("values", metavar="[KEY=VALUE]...", nargs=-1)
@click.option(
    "--args", "args_text", metavar="JSON", help="All arguments as a JSON object; @FILE reads a file, - standard input."
)
@click.option("--priority", type=click.Choice(PRIORITIES), help="Default: the handler's, else medium.")
@click.option("--lane", help="Default: the handler's, else default.", shell_complete=known(Known.LANES))
@click.option("--at", metavar="TIME", help="Due at an ISO 8601 time with zone, such as 2030-01-31T12:00:00Z.")
@click.option("--after", type=DURATION, help="Due in 30s, 5m, 1h30m ...")
@click.option(
    "--durability",
    type=click.Choice([level.value for level in REQUESTABLE]),
    help="Where the job is when the submit is acknowledged.",
)
@click.option("--tag", "tags", multiple=True, help="May be repeated.")
@click.option("--tenant", help="For whom it runs; jobs that wait start in turns of their tenants.")
@click.option("--meta", "metadata", metavar="KEY=TEXT", multiple=True, help="Metadata; may be repeated.")
@click.option("--key", help="Idempotency key: the same key again gives the same job.")
@click.option("--ordering-key", metavar="KEY", help="Jobs of one key run one at a time, in the order of their submits.")
@click.option("--unique", metavar="KEY", help="Unique key: no second job of it while one holds it.")
@click.option(
    "--unique-arg", "unique_args", metavar="NAME", multiple=True, help="An argument that makes the unique key."
)
@click.option("--window", type=DURATION, help="The unique key is held for this time, whatever becomes of the job.")
@click.option("--throttle", type=DURATION, help="One job of the unique key in each clock window of this length.")
@click.option(
    "--debounce", type=DURATION, help="The unique key is held until the start; later submits move it at most this far."
)
@click.option(
    "--on-conflict",
    type=click.Choice(["existing", "reject", "replace"]),
    help="What happens while another job holds the unique key.  [default: existing]",
)
@click.option("--timeout", type=DURATION, help="How long one attempt may run.")
@click.option("--accept-time", type=DURATION, help="How long it may wait in the bucket of one agent.")
@click.option("--complete-time", type=DURATION, help="How long it may run before another agent gets it.")
@click.option(
    "--cancel-slow", is_flag=True, help="With a complete time, here or of the handler: stop the slow run then."
)
@click.option("--max-attempts", type=click.IntRange(1), help="Attempts in all.")
@click.option("--at-most-once", "delivery", flag_value="at_most_once", help="Never start it a second time.")
@click.option("--wait-for", metavar="KEY", help="Run it when the signal of this key has come.")
@click.option("--wait-timeout", type=DURATION, help="How long it waits for the signal.")
@click.option(
    "--run-on-timeout", is_flag=True, help="Run it without the signal after that; otherwise it is EXPIRED then."
)
@click.option("--allow-unregistered", is_flag=True, help="Accept a handler that no agent has published.")
@click.option(
    "--wait",
    "waits",
    is_flag=True,
    help="Wait for the end of the job and print the result; exit code 1 unless it succeeded.",
)
@click.option("--within", type=DURATION, help="Time-out of the wait (exit code 6); implies --wait.")
@pass_invocation
def submit(invocation: Invocation, handler: str, values: tuple[str, ...], **given: Any) -> None:
    """Submit one job to HANDLER.

    A VALUE that is JSON is taken as JSON (width=800, flags='["a"]'), anything else as text.

    \b
    Examples:
      jobmaster job submit images.resize path=a.png width=800 --priority high
      jobmaster job submit reports.monthly --args '{"month": "2030-01"}' --at 2030-02-01T06:00:00Z
      jobmaster job submit images.resize path=a.png --within 30s
      jobmaster job submit documents.index document=7 --unique 7 --debounce 1m --after 5s
    """
    args = _arguments(given.pop("args_text"), values)
    within, waits = given.pop("within"), given.pop("waits")
    options = _submit_options(given)

    async def work(cluster: Cluster) -> tuple[dict[str, Any], JobView | None]:
        receipt = await cluster.submit(handler, args, **options)
        record = {
            "id": str(receipt.id),
            "level": receipt.level.value,
            "bucket_id": text(receipt.bucket_id) if receipt.bucket_id else None,
            "duplicate": receipt.duplicate,
            "answer": receipt.answer.value,
            "unserved": receipt.unserved,
        }
        if not waits and within is None:
            return record, None
        invocation.note(f"submitted {record['id']}", level=1)
        invocation.submitted_id = str(receipt.id)
        await cluster.wait(receipt, timeout=within)
        return record, await cluster.redacted(await cluster.get(receipt))

    record, view = run_async(with_cluster(invocation.settings, work))
    if view is not None:
        record = {**job_record(view), **{name: record[name] for name in ("level", "duplicate", "answer")}}
    emit_record(record, invocation.output)
    if view is not None and view.state is not JobState.SUCCEEDED:
        click.get_current_context().exit(1)


def _arguments(args_text: str | None, values: Sequence[str]) -> dict[str, Any]:
    args: Any = {}
    if args_text is not None:
        if args_text == "-":
            args_text = sys.stdin.read()
        elif args_text.startswith("@"):
            try:
                args_text = Path(args_text[1:]).read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise InputError(f"--args {args_text}: the file cannot be read: {error}") from None
        try:
            args = json.loads(args_text)
        except ValueError as error:
            raise InputError(f"--args is not JSON: {error}", hint='such as --args \'{"path": "a.png"}\'') from None
        if not isinstance(args, dict):
            raise InputError("--args must be a JSON object: argument name to value")
    for pair in values:
        name, sign, value = pair.partition("=")
        if not sign or not name:
            raise InputError(f"{pair!r} is not KEY=VALUE", hint="such as width=800")
        if name in args:
            raise InputError(f"argument {name!r} is given twice")
        try:
            args[name] = json.loads(value)
        except ValueError:
            args[name] = value
    return dict(args)


def _unique(options: dict[str, Any]) -> Unique | None:
    """Takes the options of a unique key out; ``None`` without one."""
    terms = {name: options.pop(name) for name in ("window", "throttle", "debounce", "on_conflict") if name in options}
    key, names = options.pop("unique", None), options.pop("unique_args", None)
    if key is None and names is None:
        if terms:
            name = next(iter(terms)).replace("_", "-")
            raise InputError(f"--{name} is given without a unique key", hint="give --unique KEY or --unique-arg NAME")
        return None
    from jobmaster.handlers import Unique  # loaded by few commands

    return Unique(key=key, args=names, **terms)


def _submit_options(given: dict[str, Any]) -> dict[str, Any]:
    """The given options, by the names of the client."""
    options = {name: value for name, value in given.items() if value not in (None, (), False)}
    if "at" in options:
        options["at"] = moment(options["at"], "--at")
    if "key" in options:
        options["idempotency_key"] = options.pop("key")
    seconds, runs = options.pop("wait_timeout", None), options.pop("run_on_timeout", False)
    if "wait_for" in options:
        options["wait_for"] = signal(options["wait_for"], timeout=seconds, on_timeout="run" if runs else "expire")
    elif seconds is not None or runs:
        raise InputError("--wait-timeout and --run-on-timeout belong to --wait-for KEY")
    if unique := _unique(options):
        options["unique"] = unique
    if "metadata" in options:
        pairs = [pair.partition("=") for pair in options["metadata"]]
        wrong = [name for name, sign, _ in pairs if not sign or not name]
        if wrong:
            raise InputError(f"--meta {wrong[0]!r} is not KEY=TEXT")
        options["metadata"] = {name: value for name, _, value in pairs}
    return options
