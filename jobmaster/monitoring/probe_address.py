"""Where the agents of a configuration serve their probes and metrics."""

from __future__ import annotations

from jobmaster.settings.model import ClusterSettings


def port_of(settings: ClusterSettings, agent: str, index: int) -> int | None:
    """Port of the ``index``-th process of one supervisor; ``None``: no server.

    Args:
        agent: the kind of agents, a key under ``settings.agents``.
    """
    kind = settings.agents.get(agent)
    own = kind.metrics_port if kind is not None else None
    first = settings.observability.metrics_port if own is None else own
    return first + index if first else first


def url_of(host: str, port: int) -> str:
    """URL of the server as this machine reaches it; a wildcard address becomes the loopback address."""
    place = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{place}:{port}"
