"""Names of metrics in expressions of PromQL, from the table, so that no expression names what no agent serves.

One scrape job of Prometheus is one cluster (``CLUSTER``): the expositions do not name their cluster.
"""

from __future__ import annotations

from jobmaster.telemetry import METRICS, Kind

CLUSTER = "job"
"""Label that tells clusters apart."""
PROCESS = "instance"
"""Label that tells the processes of a cluster apart."""


def name_of(key: str) -> str:
    """Name of a metric in queries, by its key in ``METRICS``.

    Raises:
        KeyError: there is no such metric.
        ValueError: it is a histogram, which has no series of that name.
    """
    metric = METRICS[key]
    if metric.kind is Kind.HISTOGRAM:
        raise ValueError(f"{key} is a histogram: query its quantile")
    return metric.served


def each(key: str, *by: str, where: str = "") -> str:
    """Sum of a metric by some labels and by cluster."""
    return f"sum by ({', '.join((CLUSTER, *by))}) ({name_of(key)}{where})"


def top(key: str, *by: str, where: str = "") -> str:
    """Greatest value of a metric by some labels and by cluster."""
    return f"max by ({', '.join((CLUSTER, *by))}) ({name_of(key)}{where})"


def rate(key: str, *by: str, where: str = "", over: str = "5m") -> str:
    """Growth of a counter in a second, by some labels and by cluster."""
    return f"sum by ({', '.join((CLUSTER, *by))}) (rate({name_of(key)}{where}[{over}]))"


def grown(key: str, *by: str, where: str = "", over: str = "15m") -> str:
    """Growth of a counter in a time, by some labels and by cluster."""
    return f"sum by ({', '.join((CLUSTER, *by))}) (increase({name_of(key)}{where}[{over}]))"


def quantile(share: float, key: str, *by: str, where: str = "", over: str = "5m") -> str:
    """Quantile of a histogram, by some labels and by cluster."""
    metric = METRICS[key]
    if metric.kind is not Kind.HISTOGRAM:
        raise ValueError(f"{key} is no histogram")
    labels = ", ".join((CLUSTER, *by, "le"))
    return f"histogram_quantile({share}, sum by ({labels}) (rate({metric.name}_bucket{where}[{over}])))"
