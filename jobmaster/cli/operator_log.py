"""The operator's log: the user and the acts of a command, written to the master."""

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
        action: as the command is called.
        acts: details by subject.
    """
    return operator_name(), action, list(acts), [json.dumps(detail) for detail in acts.values()]


async def note_acts(settings: ClusterSettings, action: str, acts: Mapping[str, Mapping[str, object]]) -> None:
    """Lines in the operator's log about what a command has done.

    Raises:
        JobMasterError: they could not be written; what was done is done.
    """
    from jobmaster.wiring import open_master

    if not acts:
        return
    master = await open_master(settings, application_name="jobmaster-cli")
    try:
        await master.statements.write(NOTE, *note_values(action, acts))
    finally:
        await master.close()
