"""Writes the user and the actions of a command to the operator's log in the master."""

from __future__ import annotations

import getpass
import json
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jobmaster.settings.model import ClusterSettings

NOTE = "maintenance/note_operations"


def operator_name() -> str:
    """``user@host`` of the process."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user often has no name
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def note_values(action: str, acts: Mapping[str, Mapping[str, object]]) -> tuple[str, str, list[str], list[str]]:
    """Values of the statement ``NOTE``.

    Args:
        action: name of the command.
        acts: details by subject.
    """
    return operator_name(), action, list(acts), [json.dumps(detail) for detail in acts.values()]


async def note_acts(settings: ClusterSettings, action: str, acts: Mapping[str, Mapping[str, object]]) -> None:
    """Write lines about the actions of a command to the operator's log.

    Raises:
        JobMasterError: the lines could not be written; the actions themselves are not undone.
    """
    from jobmaster.wiring import open_master

    if not acts:
        return
    # A single statement: it passes a pooler, as the commands about jobs do.
    master = await open_master(settings, application_name="jobmaster-cli", producer=True)
    try:
        await master.statements.write(NOTE, *note_values(action, acts))
    finally:
        await master.close()
