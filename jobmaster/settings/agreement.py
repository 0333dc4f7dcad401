"""The settings that the agents of a cluster should have in common, and in which of them they differ.

Nothing breaks at once where they differ: a lease row holds its own length, and the failure detector uses that. But which
agent is rescued when, how far ahead jobs leave the master, and after how many rescues a job is given up is then a matter of
chance.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import msgspec

from jobmaster.settings.model import ClusterSettings

_OWN = frozenset({"leases.grace"})
"""Each agent's own affair."""
_UNITS = ("_seconds", "_bytes")


def common(settings: ClusterSettings) -> dict[str, object]:
    """Values by their key in the configuration."""
    found: dict[str, object] = {}
    for section in ("leases", "thresholds"):
        for name, value in msgspec.to_builtins(getattr(settings, section)).items():
            unit = next((unit for unit in _UNITS if name.endswith(unit)), "")
            found[f"{section}.{name.removesuffix(unit)}"] = value
    found["jobs.max_rescues"] = settings.jobs.max_rescues
    return {key: value for key, value in found.items() if key not in _OWN}


def differences(published: Sequence[tuple[str, Mapping[str, object]]]) -> list[str]:
    """One sentence for each key about which agents differ.

    Args:
        published: names of agents and what each has published; a key that one of them does not know is not compared.
    """
    values: dict[str, dict[str, list[str]]] = {}
    for name, settings in published:
        for key, value in settings.items():
            values.setdefault(key, {}).setdefault(json.dumps(value), []).append(name)
    return [
        f"{key} is {' and '.join(f'{value} on {_some(names)}' for value, names in sorted(found.items()))}"
        for key, found in sorted(values.items())
        if len(found) > 1
    ]


def _some(names: Sequence[str], most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
