"""URLs of the master and of stores, read strictly, so that no part of a password is read as a host, a port or a path.

Errors never quote the URL. A password in a URL has to be percent-encoded; the loader encodes the text of a ``${...}`` there
(``encode_parts``).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import parse_qs, quote, unquote, urlsplit

PORT_DEFAULT = 5432
SENTINEL_PORT_DEFAULT = 26379
STORE_PORT_DEFAULT = 6379
PORT_MAX = 65535
SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
SESSION_ATTRIBUTES = ("any", "primary", "standby", "prefer-standby", "read-write", "read-only")
_CHOICES = {"sslmode": SSL_MODES, "target_session_attrs": SESSION_ATTRIBUTES}
ENCODE_HINT = (
    "percent-encode user and password (/ is %2F, # is %23, @ is %40, ? is %3F, % is %25), or put them in with ${NAME} "
    "or ${file:path}, which are encoded by the loader"
)
_REFERENCE = re.compile(r"\$\$\{|\$\{[^{}]*\}")
_URL = re.compile(r"[a-z+]+://")
_DSN = re.compile(r"postgres(ql)?://")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^\[\]:]*)(?::(.*))?")
_SENTINEL_URL = re.compile(r"(rediss?)\+sentinel://")
_SENTINEL_PATH = re.compile(r"/([A-Za-z0-9._-]+)(/[0-9]*)?")
_CLUSTER_URL = re.compile(r"(rediss?)\+cluster://")
_SENTINEL_LOGIN = {"sentinel_username": "username", "sentinel_password": "password"}


class UrlError(ValueError):
    """A URL that cannot be used: the mistake, its part of the URL, and the remedy. Quotes no part of the URL."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message, self.hint = message, hint


class MasterUrl(NamedTuple):
    """A DSN of PostgreSQL, taken apart."""

    hosts: tuple[tuple[str, int], ...]
    """In the order of trying. Empty: the environment or the driver decides."""
    database: str
    parameters: dict[str, str]
    """Parameters of the query, decoded."""

    def __str__(self) -> str:
        """``host:port/database`` for messages: without user, password and parameters."""
        hosts = self.hosts or (("localhost", PORT_DEFAULT),)
        return f"{','.join(f'{host}:{port}' for host, port in hosts)}/{self.database}"


def is_dsn(text: str) -> bool:
    """True for the address of a PostgreSQL, by its scheme; False for a path, a name or another address."""
    return _DSN.match(text) is not None


def parse_dsn(dsn: str) -> MasterUrl:
    """A DSN of the master.

    Raises:
        UrlError: it cannot be used.
    """
    if not is_dsn(dsn):
        raise UrlError("it is no URL of PostgreSQL", "such as postgresql://user:password@host:5432/database")
    netloc, path, query = _parts(dsn)
    parameters = _parameters(query)
    for name, choices in _CHOICES.items():
        if parameters.get(name, choices[0]) not in choices:
            raise UrlError(f"{name} in its query is not one that there is", f"one of {', '.join(choices)}")
    ports = [_port(one) for one in parameters.get("port", str(PORT_DEFAULT)).split(",")]
    hosts = _hosts(netloc.rpartition("@")[2] or parameters.get("host", ""), ports)
    return MasterUrl(hosts, unquote(path.removeprefix("/")), parameters)


class SentinelUrl(NamedTuple):
    """The URL of a store whose present server is named by Sentinels, taken apart."""

    sentinels: tuple[tuple[str, int], ...]
    """In the order of trying."""
    group: str
    """The name that the Sentinels have for the primary and its replicas."""
    login: dict[str, str]
    """``username`` and ``password`` for the Sentinels, decoded; those that are given."""
    server: str
    """URL of each server of the group, with a placeholder as its host."""


def parse_sentinel_url(url: str) -> SentinelUrl | None:
    """A URL such as ``redis+sentinel://user:password@h1,h2:26380/group/0``; ``None`` when it is of another kind.

    User, password, database and parameters are those of the servers; ``sentinel_username`` and ``sentinel_password`` are
    for the Sentinels. Source of the form: docket.

    Raises:
        UrlError: it cannot be used.
    """
    scheme = _SENTINEL_URL.match(url)
    if scheme is None:
        return None
    netloc, path, query = _parts(url)
    parameters = _parameters(query)
    login, _, hosts = netloc.rpartition("@")
    sentinels = _hosts(hosts, [SENTINEL_PORT_DEFAULT])
    if not sentinels or not all(host for host, _ in sentinels):
        raise UrlError("it names no Sentinel", "such as redis+sentinel://host1:26379,host2:26379/group/0")
    names = _SENTINEL_PATH.fullmatch(path)
    if names is None:
        message = "its path is not the name of a group of servers, and the number of a database"
        raise UrlError(message, "such as redis+sentinel://host1:26379,host2:26379/group/0")
    unknown = [name for name in parameters if name.startswith("sentinel_") and name not in _SENTINEL_LOGIN]
    if unknown:
        raise UrlError(
            "a parameter of its query begins with sentinel_ and is none that there is",
            f"one of {', '.join(_SENTINEL_LOGIN)}",
        )
    left = "&".join(pair for pair in query.split("&") if pair and not pair.startswith("sentinel_"))
    server = f"{scheme[1]}://{login}@placeholder{names[2] or ''}{'?' if left else ''}{left}"
    of_sentinels = {word: parameters[name] for name, word in _SENTINEL_LOGIN.items() if name in parameters}
    return SentinelUrl(sentinels, names[1], of_sentinels, server)


class ClusterUrl(NamedTuple):
    """The URL of a store that is a Redis or Valkey Cluster, taken apart."""

    nodes: tuple[tuple[str, int], ...]
    """Those that are asked first for the others, in the order of trying."""
    server: str
    """URL of each node, with a placeholder as its host."""


def parse_cluster_url(url: str) -> ClusterUrl | None:
    """A URL such as ``redis+cluster://user:password@h1:6379,h2:6379``; ``None`` when it is of another kind.

    User, password and parameters are those of every node.

    Raises:
        UrlError: it cannot be used.
    """
    scheme = _CLUSTER_URL.match(url)
    if scheme is None:
        return None
    netloc, path, query = _parts(url)
    _parameters(query)
    login, _, hosts = netloc.rpartition("@")
    nodes = _hosts(hosts, [STORE_PORT_DEFAULT])
    if not nodes or not all(host for host, _ in nodes):
        raise UrlError("it names no node of a cluster", "such as redis+cluster://host1:6379,host2:6379")
    if path not in {"", "/", "/0"}:
        raise UrlError(
            "its path is neither empty nor database 0: a Redis or Valkey Cluster is used in that one alone",
            "such as redis+cluster://host1:6379,host2:6379",
        )
    return ClusterUrl(nodes, f"{scheme[1]}://{login}@placeholder{'?' if query else ''}{query}")


def check_store_url(url: str) -> None:
    """Check the URL of a store.

    Raises:
        UrlError: it cannot be used.
    """
    if parse_sentinel_url(url) is not None or parse_cluster_url(url) is not None:
        return
    netloc, path, query = _parts(url)
    _parameters(query)
    if url.startswith("unix://"):
        return
    hosts = _hosts(netloc.rpartition("@")[2], [0])
    if len(hosts) > 1:
        raise UrlError(
            "it names several hosts",
            "a store is one server: name one, or give each a store of its own; of servers that Sentinels watch, name the "
            "Sentinels: redis+sentinel://host1:26379,host2:26379/group/0; of a Redis or Valkey Cluster, name some nodes: "
            "redis+cluster://host1:6379,host2:6379",
        )
    if not re.fullmatch(r"(/[0-9]*)?", path):
        raise UrlError("its path is not the number of a database", "such as redis://host:6379/0")


def encode_parts(template: str, replace: Callable[[re.Match[str]], str], reference: re.Pattern[str]) -> str:
    """Replace references. In the user, the password and the value of a parameter of a URL the text is percent-encoded.

    The text of a reference that is the whole URL, a host, the database or a whole parameter is inserted unchanged.
    """
    # References may hold any character themselves: the shape of the URL is that of the text around them.
    shape = _REFERENCE.sub(lambda match: "$" * len(match[0]), template)
    start = _URL.match(shape)
    if start is None:
        return reference.sub(replace, template)
    question = shape.find("?", start.end())
    user_ends = shape.rfind("@", start.end(), question if question >= 0 else len(shape))

    def follow(match: re.Match[str]) -> str:
        text = replace(match)
        in_user = match.start() < user_ends
        in_value = question >= 0 and "=" in re.split("[?&]", shape[question : match.start()])[-1]
        return quote(text, safe="") if match[0] != "$${" and (in_user or in_value) else text

    return reference.sub(follow, template)


def _parts(url: str) -> tuple[str, str, str]:
    """Authority, path and query."""
    if not url.isprintable():
        raise UrlError("it holds a character that cannot be printed", ENCODE_HINT)
    # Later versions of Python take brackets at the begin of a host only. Here each of several hosts may be an IPv6 address.
    begin = url.find("://") + 3 if "://" in url else len(url)
    authority = re.split("[/?#]", url[begin:], maxsplit=1)[0]
    hosts = authority.rpartition("@")[2]
    begin += len(authority) - len(hosts)
    plain = hosts.replace("[", "%5B").replace("]", "%5D")
    try:
        parts = urlsplit(f"{url[:begin]}{plain}{url[begin + len(hosts) :]}")
    except ValueError:  # its message quotes a part of the URL
        raise UrlError("what stands before its path cannot be understood", ENCODE_HINT) from None
    if "#" in url:
        raise UrlError("it holds a #, which ends a URL", ENCODE_HINT)
    if parts.netloc.count("@") != url.count("@") or url.count("@") > 1:
        raise UrlError("it holds an @ that does not end user and password", ENCODE_HINT)
    return parts.netloc.removesuffix(plain) + hosts, parts.path, parts.query


def _parameters(query: str) -> dict[str, str]:
    try:
        return {name: values[-1] for name, values in parse_qs(query, strict_parsing=bool(query)).items()}
    except ValueError:
        hint = "write name=value, joined by &; in a password a ? is %3F"
        raise UrlError("what stands after its ? is not a list of parameters", hint) from None


def _hosts(text: str, ports: list[int]) -> tuple[tuple[str, int], ...]:
    """Hosts, each with its own port, else with its entry of ``ports``, else with the single one."""
    if not text:
        return ()
    names = text.split(",")
    if len(ports) not in {1, len(names)}:
        raise UrlError("it has another number of ports than of hosts", "give one port for all hosts, or one for each")
    hosts = []
    for name, default in zip(names, ports * len(names) if len(ports) == 1 else ports, strict=True):
        if name.startswith("/"):  # the directory of a socket
            hosts.append((name, default))
            continue
        match = _HOST.fullmatch(unquote(name))
        if match is None or not name:
            raise UrlError("a host in it cannot be understood", ENCODE_HINT)
        host, given = match.groups()
        hosts.append((host.strip("[]"), default if given is None else _port(given)))
    return tuple(hosts)


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text[:9]) <= PORT_MAX):
        raise UrlError(
            f"its port is not a number from 1 to {PORT_MAX}",
            f"mend the port; if a part of the password stands there, {ENCODE_HINT}",
        )
    return int(text)
