"""Authentication of the caller of a request, and what the caller may do.

A caller is known by a token: programs send it as ``Authorization: Bearer``, browsers as the password of HTTP Basic, whose
user is the caller's name. Tokens are random, so they are compared by their SHA-256; a slow hash would cost processor time in
each request and protect nothing more. Without a token in the configuration the caller is *anonymous*: on this machine, and
reading only.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import NamedTuple

from starlette.requests import HTTPConnection

from jobmaster.clock import Clock
from jobmaster.handlers import check_name
from jobmaster.rules.access import READING, Scope
from jobmaster.settings.model import Web, WebToken
from jobmaster.web.answers import RequestRefused

TOKEN_BYTES = 32
TOKEN_PREFIX = "jmt_"  # noqa: S105  # the same for every token
"""Begins every token that is made here, so that scanners of repositories find one."""
FAILURES_MAX, FAILURE_SECONDS = 10, 60.0
"""Wrong tokens of one address, and the time in which they count."""
ADDRESSES_MAX = 10_000
NAME_CHARS_MAX = 150
_FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")
# Bearer is not named: Chromium reads one scheme from a header, and shows its dialog for Basic alone.
_CHALLENGE = {"WWW-Authenticate": 'Basic realm="jobmaster", charset="UTF-8"'}


class Principal(NamedTuple):
    """The caller of a request."""

    name: str
    scopes: frozenset[Scope]
    anonymous: bool = False

    @property
    def actor(self) -> str:
        """Name in the operator log."""
        return f"{self.name}@web"


Authenticate = Callable[[HTTPConnection], Awaitable[Principal | None]]
"""An application's own authentication: the caller of a request; ``None``: it is not known, and the tokens decide."""


def new_token() -> tuple[str, str]:
    """A fresh token, and its SHA-256 for the configuration."""
    token = TOKEN_PREFIX + secrets.token_urlsafe(TOKEN_BYTES)
    return token, hashlib.sha256(token.encode()).hexdigest()


class TokenTable:
    """The callers of the configuration."""

    def __init__(self, tokens: Mapping[str, WebToken]) -> None:
        self._callers = [
            (_digest_of(token), Principal(name, frozenset(token.scopes) or token.role.scopes))
            for name, token in tokens.items()
        ]

    def __len__(self) -> int:
        return len(self._callers)

    def find(self, token: str, name: str | None) -> Principal | None:
        """The caller with this token, and of this name if one is given. Each caller is compared, so that the time does not
        depend on which one fits."""
        digest = hashlib.sha256(token.encode()).digest()
        found = None
        for known, principal in self._callers:
            same = hmac.compare_digest(known, digest)
            if same and (name is None or hmac.compare_digest(principal.name.encode(), name.encode())):
                found = principal
        return found


def _digest_of(token: WebToken) -> bytes:
    if token.sha256 is not None:
        return bytes.fromhex(token.sha256)
    assert token.token is not None, "checked with the configuration"
    return hashlib.sha256(token.token.encode()).digest()


class FailureLimit:
    """Counts wrong tokens by address, and refuses addresses with too many of them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failures: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def check(self, address: str) -> None:
        """Raises ``RequestRefused`` while the address has had too many failures."""
        count, since = self._failures.get(address, (0, 0.0))
        left = since + FAILURE_SECONDS - self._clock.boottime()
        if count >= FAILURES_MAX and left > 0:
            raise RequestRefused(
                429,
                "too_many_failures",
                "too many wrong tokens came from this address",
                f"wait {left:.0f} s",
                {"Retry-After": str(int(left) + 1)},
            )

    def failed(self, address: str) -> None:
        """Count a wrong token."""
        now = self._clock.boottime()
        count, since = self._failures.pop(address, (0, now))
        if now - since >= FAILURE_SECONDS:
            count, since = 0, now
        self._failures[address] = (count + 1, since)
        if len(self._failures) > ADDRESSES_MAX:
            self._failures.popitem(last=False)


class Access:
    """Identifies the caller of a request. One for each application.

    Args:
        settings: tokens, and what an anonymous caller may read.
        authenticate: the application's own way, asked first.
    """

    def __init__(self, settings: Web, clock: Clock, authenticate: Authenticate | None = None) -> None:
        self._tokens = TokenTable(settings.tokens)
        self._authenticate = authenticate
        self._failures = FailureLimit(clock)
        self._anonymous = Principal("anonymous", READING & frozenset(settings.anonymous), anonymous=True)

    @property
    def configured(self) -> bool:
        """False: every caller is anonymous."""
        return self._authenticate is not None or len(self._tokens) > 0

    async def principal_of(self, connection: HTTPConnection) -> Principal:
        """The caller of a request; without scopes, if the caller is not known.

        Raises:
            RequestRefused: a wrong token, too many of them, or an anonymous request that is not from this machine.
        """
        if not self.configured:
            _check_local(connection)
            return self._anonymous
        if self._authenticate is not None:
            principal = await self._authenticate(connection)
            if principal is not None:
                check_name(principal.name, "the name of a principal", NAME_CHARS_MAX)
                return principal
        header = connection.headers.get("authorization")
        if header is None:
            return Principal("unknown", frozenset(), anonymous=True)
        address = address_of(connection)
        self._failures.check(address)
        credentials = _credentials(header)
        found = None if credentials is None else self._tokens.find(*credentials)
        if found is None:
            self._failures.failed(address)
            raise RequestRefused(401, "unauthorized", "the token is not known", headers=_CHALLENGE)
        return found


def require(principal: Principal, scope: Scope | None) -> None:
    """Raises ``RequestRefused`` for a caller without the scope of a route; ``None``: the route is open to everybody."""
    if scope is None or scope in principal.scopes:
        return
    if principal.anonymous and not principal.scopes:
        raise RequestRefused(
            401, "unauthorized", "this needs a token", "send Authorization: Bearer TOKEN", headers=_CHALLENGE
        )
    raise RequestRefused(
        403,
        "forbidden",
        f"{principal.name!r} has no scope {scope.value!r}",
        "web.tokens has the roles and scopes of callers",
    )


def address_of(connection: HTTPConnection) -> str:
    """The address of the caller; of IPv6 the network that one customer has (/64)."""
    host = connection.client.host if connection.client is not None else ""
    address = _address(host)
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((address, 64), strict=False))
    return host if address is None else str(address)


def is_loopback(host: str) -> bool:
    """True for an address, or a name, of this machine alone."""
    address = _address(host.strip("[]"))
    return host == "localhost" or (address is not None and address.is_loopback)


def is_known_host(host: str, hosts: Collection[str]) -> bool:
    """Whether a request may name this host. An address may always: only a *name* can be made to lead to another address than
    its owner's (DNS rebinding)."""
    name = host.lower().rstrip(".")
    return name == "localhost" or name in hosts or _address(name.strip("[]")) is not None


def _check_local(connection: HTTPConnection) -> None:
    """Without authentication only this machine may read, and not through a proxy, which would hide the caller's machine."""
    client = connection.client
    proxied = any(name in connection.headers for name in _FORWARDED)
    if proxied or (client is not None and not is_loopback(client.host)):
        raise RequestRefused(
            403,
            "no_authentication",
            "no authentication is configured, so only this machine is answered",
            "give web.tokens (jobmaster web token NAME makes one)",
        )


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address; a server that listens on ``::`` sees those of IPv4 inside ones of IPv6."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return (isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped) or address


def _credentials(header: str) -> tuple[str, str | None] | None:
    """Token and name of an ``Authorization`` header; ``None``: it is malformed."""
    scheme, _, value = header.partition(" ")
    value = value.strip()
    if scheme.lower() == "bearer" and value:
        return value, None
    if scheme.lower() != "basic":
        return None
    try:
        name, colon, token = base64.b64decode(value, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return None
    return (token, name) if colon else None
