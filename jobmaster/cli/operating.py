"""Who acts: written into the operator's log beside every act."""

from __future__ import annotations

import getpass
import socket


def operator_name() -> str:
    """``user@host`` of whoever runs the command line."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user often has no name
        user = "unknown"
    return f"{user}@{socket.gethostname()}"
