"""The options by which commands choose jobs: those of ``jobmaster.client.jobs.job_filters.JobFilters``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click

from jobmaster.cli.commands.job_inputs import PRIORITIES, TIME_BOUND
from jobmaster.cli.completion import Known, known
from jobmaster.model.errors import InputError
from jobmaster.model.job import MASTER_STATES

_OPTIONS = (
    click.option(
        "--state", "states", type=click.Choice(sorted(MASTER_STATES), case_sensitive=False), multiple=True,
        help="May be repeated.",
    ),
    click.option("--handler", shell_complete=known(Known.HANDLERS)),
    click.option("--lane", shell_complete=known(Known.LANES)),
    click.option("--priority", type=click.Choice(PRIORITIES)),
    click.option("--tag"),
    click.option("--meta", metavar="KEY=TEXT", multiple=True, help="Metadata of the submit; may be repeated."),
    click.option("--batch", metavar="ID", help="Jobs of this batch."),
    click.option("--workflow", metavar="ID", help="Jobs of this workflow."),
    click.option("--schedule", metavar="NAME", help="Fires of this schedule.", shell_complete=known(Known.SCHEDULES)),
    click.option("--tenant"),
    click.option("--error", help="Type of the recorded error, or the fingerprint of a group (jobmaster job failures)."),
    click.option("--due-after", type=TIME_BOUND, help="HELD, and due in 30m, 2h ... or later, or from a time with zone on."),
    click.option("--due-before", type=TIME_BOUND, help="HELD, and due within 30m, 2h ..., or before a time with zone."),
    click.option(
        "--since", type=TIME_BOUND, help="Created within the last 30m, 2h, 7d ..., or since a time with zone."
    ),
    click.option(
        "--until", type=TIME_BOUND, help="Created longer ago than 30m, 2h, 7d ..., or before a time with zone."
    ),
)  # fmt: skip


def filter_options(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the options; ``filters_of`` reads them."""
    for decorate in reversed(_OPTIONS):
        command = decorate(command)
    return command


def filters_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """The given options, by the names of the client.

    Raises:
        InputError: metadata that is not ``KEY=TEXT``.
    """
    filters = {name: value for name, value in given.items() if value is not None and value != ()}
    if "states" in filters:
        filters["state"] = filters.pop("states")
    if "meta" in filters:
        pairs = [pair.partition("=") for pair in filters.pop("meta")]
        if wrong := [name for name, sign, _ in pairs if not sign or not name]:
            raise InputError(f"--meta {wrong[0]!r} is not KEY=TEXT")
        filters["metadata"] = {name: value for name, _, value in pairs}
    return filters
