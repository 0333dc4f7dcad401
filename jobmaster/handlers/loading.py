"""Handlers by module path, as the configuration and the command line name them."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from jobmaster.distribution import command_for
from jobmaster.handlers.registry import Handlers
from jobmaster.model.errors import ConfigError
from jobmaster.model.suggestion import did_you_mean


def load_handlers(paths: Sequence[str]) -> Handlers:
    """Import modules and join what they declare.

    Args:
        paths: ``package.module`` takes every ``Handlers`` found in the module, ``package.module:attribute`` that one.
            The working directory is searched too (last), as ``python -m`` would.

    Raises:
        ConfigError: a module cannot be imported (with its own error and line), declares nothing, or two functions have
            one name.
    """
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)
    joined = Handlers()
    for path in paths:
        module_name, _, attribute = path.partition(":")
        module = _import(module_name, path)
        for registry in _registries(module, attribute, path):
            joined.merge(registry)
    return joined


def _import(module_name: str, path: str) -> ModuleType:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise ConfigError(
                f"handlers {path!r}: there is no module {error.name!r}",
                hint="write package.module as Python imports it; the working directory and PYTHONPATH are searched",
            ) from error
        hint = command_for(error.name) or _last_line(error)
        raise ConfigError(f"handlers {path!r}: importing it failed: {error}", hint=hint) from error
    except ConfigError as error:
        raise ConfigError(f"handlers {path!r}: {error.message}", hint=error.hint) from error
    except (Exception, SystemExit) as error:  # importing runs foreign code
        raise ConfigError(
            f"handlers {path!r}: importing it failed: {type(error).__name__}: {error}", hint=_last_line(error)
        ) from error


def _registries(module: ModuleType, attribute: str, path: str) -> list[Handlers]:
    if attribute:
        try:
            value = getattr(module, attribute)
        except AttributeError:
            hint = did_you_mean(attribute, vars(module))
            raise ConfigError(f"handlers {path!r}: the module has no attribute {attribute!r}", hint=hint) from None
        registry = _registry_in(value)
        if registry is None:
            raise ConfigError(f"handlers {path!r}: it is a {type(value).__name__}, not a jobmaster.Handlers")
        return [registry]
    found = {id(registry): registry for value in vars(module).values() if (registry := _registry_in(value)) is not None}
    if not found:
        raise ConfigError(
            f"handlers {path!r}: the module holds no jobmaster.Handlers",
            hint="declare `handlers = Handlers()` in it and mark functions with @handlers.job",
        )
    return list(found.values())


def _registry_in(value: object) -> Handlers | None:
    """The registry itself, or the one of a cluster in the module."""
    if isinstance(value, Handlers):
        return value
    if type(value).__module__.startswith("jobmaster."):
        inner = getattr(value, "handlers", None)
        return inner if isinstance(inner, Handlers) else None
    return None


def _last_line(error: BaseException) -> str | None:
    frames = traceback.extract_tb(error.__traceback__)
    return f'File "{frames[-1].filename}", line {frames[-1].lineno}' if frames else None
