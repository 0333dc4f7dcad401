"""What all agents of a cluster should have in common, settings and arguments of handlers, and the differences between agents.

A different setting breaks nothing at once: a lease row holds its own length, and the failure detector uses that. But the
moment of a rescue, how early jobs leave the master, and the number of rescues or snoozes that ends a job then depend on which
agent acts. With different arguments of a handler, some of its jobs fail: any agent that has the handler may get them.
It happens during a deployment that changes them, and where two applications share a cluster by mistake.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from jobmaster.model.agent import HandlerSpec
from jobmaster.settings.model import ClusterSettings

_OWN = frozenset({"leases.grace"})
"""Keys of these sections that may differ."""
_UNITS = ("_seconds", "_bytes")
_HANDLER = "handler "
_HASH_CHARS = 12


def common(settings: ClusterSettings) -> dict[str, object]:
    """Values by their key in the configuration."""
    found: dict[str, object] = {}
    for section in ("leases", "thresholds"):
        for name, value in msgspec.to_builtins(getattr(settings, section)).items():
            unit = next((unit for unit in _UNITS if name.endswith(unit)), "")
            found[f"{section}.{name.removesuffix(unit)}"] = value
    found["jobs.max_rescues"] = settings.jobs.max_rescues
    found["jobs.max_snoozes"] = settings.jobs.max_snoozes
    found["jobs.max_reassigns"] = settings.jobs.max_reassigns
    found["zone"] = settings.zone
    return {key: value for key, value in found.items() if key not in _OWN}


def declared(handlers: Iterable[HandlerSpec]) -> dict[str, object]:
    """A short hash of the arguments of each handler, by a key of its own."""
    return {
        f"{_HANDLER}{spec.name}": hashlib.sha256(msgspec.json.encode(spec.schema, order="sorted")).hexdigest()[
            :_HASH_CHARS
        ]
        for spec in handlers
    }


def differences(published: Sequence[tuple[str, Mapping[str, object]]]) -> list[str]:
    """One sentence for each setting about which agents differ.

    Args:
        published: names of agents and what each has published; a key that an agent has not published is not compared for it.
    """
    return [
        f"{key} is {' and '.join(f'{value} on {_some(names)}' for value, names in sorted(found.items()))}"
        for key, found in _differing(published)
        if not key.startswith(_HANDLER)
    ]


def declared_differently(published: Sequence[tuple[str, Mapping[str, object]]]) -> list[str]:
    """One sentence for each handler whose arguments are not the same on all agents that have it."""
    return [
        f"{key} takes other arguments on {' than on '.join(sorted(map(_some, found.values())))}"
        for key, found in _differing(published)
        if key.startswith(_HANDLER)
    ]


def _differing(published: Sequence[tuple[str, Mapping[str, object]]]) -> list[tuple[str, dict[str, list[str]]]]:
    """Keys with more than one value, each value with the agents that have it."""
    values: dict[str, dict[str, list[str]]] = {}
    for name, settings in published:
        for key, value in settings.items():
            values.setdefault(key, {}).setdefault(json.dumps(value), []).append(name)
    return [(key, found) for key, found in sorted(values.items()) if len(found) > 1]


def _some(names: Sequence[str], most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
