"""Whether a database of the project is the one in which the cluster's master lives: a job can join its transactions then."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from django.conf import settings as project

from jobmaster.settings.model import ClusterSettings

LOCAL_HOSTS = frozenset({"", "localhost", "127.0.0.1", "::1"})
"""Names of this machine in the address of a server."""
DEFAULT_PORT = "5432"


def is_master(alias: str, settings: ClusterSettings) -> bool:
    """True when the project's database ``alias`` and the cluster's master are one: the same server by its name and port, and
    the same database. A master that is found only when it runs (an embedded one) is none of the project's databases.
    Nor is one whose address names several hosts: which of them answers is known only then."""
    configured = project.DATABASES.get(alias, {})
    if not str(configured.get("ENGINE", "")).endswith(("postgresql", "postgis", "postgresql_psycopg2")):
        return False
    if settings.master.dsn is None:
        return False
    try:
        return _place_of_dsn(settings.master.dsn) == _place_of_database(configured)
    except ValueError:  # several hosts with a port each
        return False


def _place_of_dsn(dsn: str) -> tuple[str, str, str]:
    parts = urlsplit(dsn)
    query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    host = query.get("host") or unquote(parts.hostname or "")
    port = query.get("port") or str(parts.port or DEFAULT_PORT)
    return _server(host), port, unquote(parts.path.lstrip("/")) or query.get("dbname") or query.get("database", "")


def _place_of_database(configured: Mapping[str, Any]) -> tuple[str, str, str]:
    return (
        _server(str(configured.get("HOST") or "")),
        str(configured.get("PORT") or DEFAULT_PORT),
        str(configured.get("NAME") or ""),
    )


def _server(host: str) -> str:
    return "localhost" if host.lower() in LOCAL_HOSTS else host.rstrip("/").lower()
