"""Users of a store with no more rights than their calls ask for, as ``ACL SETUSER`` lines of Redis and Valkey.

A server checks each command that a function runs against the user who calls it, so a user needs the functions that it calls
by name (``+fcall|name``) and the commands inside them, on the keys of its cluster alone. Both are read from the texts of the
functions. Source of the idea: the servers' own pages on access control lists.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from functools import cache

from jobmaster.agentstore.keys import Keys
from jobmaster.agentstore.library import PREFIX, sources

PASSWORD = "<password>"  # noqa: S105 - a place for one


class StoreUser(StrEnum):
    """A role at a store. The name of the user is ``jobmaster-``, the cluster, ``-`` and this word."""

    LOADER = "loader"
    """Loads the functions and claims the store: ``jobmaster store init``."""
    AGENT = "agent"
    PRODUCER = "producer"
    """Submits jobs and follows them."""
    OPERATOR = "operator"
    """Submits, looks into buckets and freezes them, as the command line does."""


_CONNECTION = ("auth", "hello", "select", "ping", "client|setname", "client|setinfo")
_NODES = ("asking", "cluster|info", "cluster|slots", "cluster|nodes")
"""Of each user: how the nodes of a server cluster are found and followed."""
_READS = ("info", "hmget", "config|get")
"""Of each user: what ``StoreHealth`` is read from. Without ``config|get`` the eviction policy is unknown."""
_SCANS = ("scan", "hget", "lrange", "smembers", "llen")
"""Every bucket in a store, and the jobs that are only there."""
COMMANDS: dict[StoreUser, tuple[str, ...]] = {
    StoreUser.LOADER: (*_NODES, *_READS, *_SCANS, "function|list", "function|load"),
    StoreUser.AGENT: (*_NODES, *_READS, *_SCANS, "function|list", "blpop", "subscribe", "unsubscribe", "publish"),
    StoreUser.PRODUCER: (*_NODES, *_READS, "subscribe", "unsubscribe"),
    StoreUser.OPERATOR: (*_NODES, *_READS, *_SCANS, "function|list", "subscribe", "unsubscribe"),
}
"""What the program sends by itself."""
_SUBMITS = ("submit", "put", "hint", "request_cancel", "recall", "find", "depth")
FUNCTIONS: dict[StoreUser, tuple[str, ...]] = {
    StoreUser.LOADER: ("adopt_store",),
    StoreUser.AGENT: tuple(name for name in sources() if name != "prelude"),
    StoreUser.PRODUCER: _SUBMITS,
    StoreUser.OPERATOR: (*_SUBMITS, "freeze"),
}
"""What it calls by name."""

_COMMAND = re.compile(r"\b(?:call|in_chunks|items_from)\('([A-Z]+)'")
_HELPER = re.compile(r"^local function (\w+)\(.*?^end$", re.MULTILINE | re.DOTALL)
_WORD = re.compile(r"\b\w+(?=\()")


def acl(cluster: str) -> str:
    """The lines for one cluster, with a place for each password; the same input gives the same text."""
    lines = [f"# JobMaster: users of cluster {cluster}. Put in passwords, run the lines in each store, then ACL SAVE."]
    lines += [line_of(cluster, user, f">{PASSWORD}") for user in StoreUser]
    return "\n".join(lines) + "\n"


def user_name(cluster: str, user: StoreUser) -> str:
    """Name of a user of a cluster."""
    return f"jobmaster-{cluster}-{user.value}"


def line_of(cluster: str, user: StoreUser, password: str) -> str:
    """One ``ACL SETUSER`` line.

    Args:
        password: as the command has it: ``>text`` or ``#sha256``.
    """
    keys = Keys(cluster)
    words = [
        "ACL SETUSER", user_name(cluster, user), "reset", "on", password,
        *(f"~{pattern.decode()}" for pattern in keys.every_key), f"&{keys.finished.decode()}",
        *(f"+{command}" for command in sorted({*_CONNECTION, *COMMANDS[user], *_inside(user)})),
        *(f"+fcall|{PREFIX}{name}" for name in sorted(FUNCTIONS[user])),
    ]  # fmt: skip
    return " ".join(words)


def _inside(user: StoreUser) -> Iterator[str]:
    """Commands in the functions of a user."""
    for name in FUNCTIONS[user]:
        texts = [sources()[name]]
        seen: set[str] = set()
        while texts:
            text = texts.pop()
            yield from (command.lower() for command in _COMMAND.findall(text))
            for called in set(_WORD.findall(text)) & helpers().keys() - seen:
                seen.add(called)
                texts.append(helpers()[called])


@cache
def helpers() -> dict[str, str]:
    """Functions of the prelude by name."""
    return {match[1]: match[0] for match in _HELPER.finditer(sources()["prelude"])}
