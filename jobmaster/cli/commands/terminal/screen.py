"""The screen of ``jobmaster top`` as lines of text: made of what was read, what the person has chosen, and the size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jobmaster.cli.commands.agent import agent_record
from jobmaster.cli.commands.bucket import bucket_record
from jobmaster.cli.commands.status import COLUMNS as GROUP_COLUMNS
from jobmaster.cli.commands.status import group_record
from jobmaster.cli.commands.terminal.figures import Figures, rate_text
from jobmaster.cli.tables import Column, clean, display_width, field_of, iso_at, render, thousands
from jobmaster.model.job import Priority
from jobmaster.units import rounded_duration, rounded_size

BOLD, REVERSE, PLAIN = "\x1b[1m", "\x1b[7m", "\x1b[0m"
HELP = "q quit   Tab next table   s sort by the next column   r reverse   Space pause"
NAME_CELLS_MAX = 30
"""Width of a name: the figures behind it matter more."""
_FRAME_LINES = 3
"""Two lines of the cluster above, the help below."""


def cut(line: str, width: int) -> str:
    """The line without what is beyond the width, in terminal cells."""
    if display_width(line) <= width:
        return line
    kept = line[:width]
    while display_width(kept) > width:
        kept = kept[:-1]
    return kept


def _short(name: str) -> str:
    return cut(name, NAME_CELLS_MAX)


class Panel(NamedTuple):
    """One table of the screen."""

    title: str
    columns: tuple[Column, ...]
    sort: int | None
    """Column that it is sorted by at first; ``None``: the order in which it is read."""


PANELS = (
    Panel("LANES AND PRIORITIES", GROUP_COLUMNS, None),
    Panel(
        "AGENTS",
        (
            Column("NAME", "name", _short),
            Column("STATE", "state"),
            Column("HOST", "host", _short),
            Column("STORE", "store", _short),
            Column("BUCKETS", "buckets", right=True),
            Column("SLOTS", "statistics.slots", right=True),
            Column("RUNNING", "statistics.running", right=True),
            Column("ENDED/S", "statistics.ended_per_second", rate_text, right=True),
            Column("FAILED/S", "statistics.failed_per_second", rate_text, right=True),
            Column("CPU", "statistics.processor", "{:.0%}".format, right=True),
            Column("MEMORY", "statistics.memory_bytes", rounded_size, right=True),
            Column("LEASE", "lease_left_seconds", rounded_duration, right=True),
        ),
        6,
    ),
    Panel(
        "BUCKETS",
        (
            Column("LANE", "lane", _short),
            Column("PRIORITY", "priority"),
            Column("STATE", "state"),
            Column("OWNER", "owner_name", _short),
            Column("DEPTH", "depth", thousands, right=True),
            Column("PENDING", "pending", thousands, right=True),
            Column("ASSIGNED", "assigned", thousands, right=True),
            Column("RUNNING", "rows_processing", thousands, right=True),
            Column("ID", "id"),
        ),
        4,
    ),
    Panel(
        "HANDLERS",
        (
            Column("HANDLER", "handler", _short),
            Column("RUNS/S", "runs_per_second", rate_text, right=True),
            Column("FAILED/S", "failed_per_second", rate_text, right=True),
            Column("RUN", "run_seconds", rounded_duration, right=True),
            Column("BUSY SLOTS", "busy", rate_text, right=True),
        ),
        1,
    ),
)


@dataclass
class View:
    """What the person at the keyboard has chosen."""

    chosen: int = 0
    """The panel that keys act on."""
    paused: bool = False
    sorts: list[int | None] = field(default_factory=lambda: [panel.sort for panel in PANELS])
    ascending: set[int] = field(default_factory=set)
    """Panels whose order is reversed: the lowest first."""

    def press(self, key: str) -> bool:
        """Obey a key; False: the screen ends."""
        match key:
            case "q" | "Q" | "\x03" | "\x04":
                return False
            case "\t":
                self.chosen = (self.chosen + 1) % len(PANELS)
            case "s":
                now = self.sorts[self.chosen]
                self.sorts[self.chosen] = 0 if now is None else (now + 1) % len(PANELS[self.chosen].columns)
            case "r":
                self.ascending ^= {self.chosen}
            case " ":
                self.paused = not self.paused
        return True


def _rows(found: Figures) -> list[list[dict[str, Any]]]:
    """The rows of each panel."""
    records = [bucket_record(view) for view in found.buckets.buckets]
    for record in records:
        known = [record[name] for name in ("pending", "assigned") if record[name] is not None]
        record["depth"] = sum(known) if known else None
    return [
        [group_record(group) for group in found.overview.backlog],
        [agent_record(view) for view in found.agents],
        records,
        found.handlers,
    ]


def lines_of(found: Figures, view: View, width: int, height: int, trouble: str | None = None) -> list[str]:
    """The screen: at most ``height`` lines of at most ``width`` cells.

    Args:
        trouble: why what is shown is old.
    """
    head = _head(found, trouble, paused=view.paused)
    tables = _rows(found)
    lines = [cut(line, width) for line in head]
    lines[0] = f"{BOLD}{lines[0]}{PLAIN}"
    rooms = share([len(rows) for rows in tables], height - _FRAME_LINES - 2 * len(PANELS))
    for at, (panel, rows, room) in enumerate(zip(PANELS, tables, rooms, strict=True)):
        lines += _table(panel, rows, room, view, at, width)
    lines = lines[: max(height - 1, 1)]
    lines += [""] * (height - 1 - len(lines))
    return [*lines, f"{REVERSE}{cut(HELP, width)}{PLAIN}"][:height]


def _head(found: Figures, trouble: str | None, *, paused: bool) -> list[str]:
    seen, rates = found.overview, found.rates
    first = (
        f"CLUSTER {seen.cluster}   agents {seen.agents_alive}/{seen.agents_known}   leader {seen.leader or 'none'}   "
        f"running {thousands(seen.running)}/{thousands(seen.slots)}   {iso_at(seen.at)}{'   PAUSED' if paused else ''}"
    )
    parts = [
        f"submitted {rate_text(found.submitted_per_second)}/s",
        *(f"{name.removesuffix('_per_second')} {rate_text(rate)}/s" for name, rate in rates.items()),
        f"ready {thousands(seen.ready)}",
        f"held {thousands(found.held)}",
    ]
    if found.oldest_seconds is not None:
        parts.append(f"oldest due {rounded_duration(found.oldest_seconds)}")
    second = "   ".join(parts)
    if trouble is not None:
        second = f"! {trouble}"
    elif seen.warnings:
        second += f"   ! {seen.warnings[0]}"
    return [clean(first), clean(second)]


def _table(panel: Panel, rows: Sequence[dict[str, Any]], room: int, view: View, at: int, width: int) -> list[str]:
    """One panel: its name and titles, and as many rows as there is room for."""
    order, ascending = view.sorts[at], at in view.ascending
    ordered = sorted_rows(rows, panel.columns[order].key, ascending=ascending) if order is not None else list(rows)
    mark = "" if order is None else f" by {panel.columns[order].title}{' ascending' if ascending else ''}"
    more = f" ({room} of {len(rows)})" if room < len(rows) else ""
    name = cut(f"{panel.title}{mark}{more}", width)
    lines = [f"{REVERSE}{name}{PLAIN}" if view.chosen == at else f"{BOLD}{name}{PLAIN}"]
    if not rows:
        return [*lines, "  none"]
    title, *cells = render(ordered, panel.columns).split("\n")
    return [*lines, cut(title, width), *(cut(line, width) for line in cells[:room])]


def sorted_rows(rows: Sequence[dict[str, Any]], key: str, *, ascending: bool) -> list[dict[str, Any]]:
    """Rows by one field, the highest first; rows without a value come last. Priorities stand in the order of their levels."""
    with_value = [row for row in rows if field_of(row, key) is not None]
    without = [row for row in rows if field_of(row, key) is None]

    def rank(row: dict[str, Any]) -> Any:
        value = field_of(row, key)
        return int(Priority.parse(value)) if key == "priority" else value

    try:
        with_value.sort(key=rank, reverse=not ascending)
    except TypeError:  # values of several types: as text
        with_value.sort(key=lambda row: str(field_of(row, key)), reverse=not ascending)
    return with_value + without


def share(wanted: Sequence[int], lines: int) -> list[int]:
    """How many lines each of several tables gets: what it wants where there is room, otherwise the same share."""
    given = [0] * len(wanted)
    left = max(lines, len(wanted))
    while left and any(has < wants for has, wants in zip(given, wanted, strict=True)):
        for at, wants in enumerate(wanted):
            if left and given[at] < wants:
                given[at] += 1
                left -= 1
    return given
