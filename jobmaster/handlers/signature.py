"""From a function's signature to the struct of its arguments (idea: typed clients such as FastAPI and docket)."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from types import MappingProxyType, UnionType
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
from msgspec import UNSET, Struct, UnsetType

from jobmaster.handlers.context import JobContext
from jobmaster.handlers.middleware import dependencies_of
from jobmaster.model.errors import ConfigError
from jobmaster.pydantic_models import ModelType, has_model, model_schemas, plain_foreign

_PLACE = re.compile(r"^(?P<what>.*) - at `\$(?:\.(?P<name>\w+))?(?P<rest>.*)`$", re.DOTALL)
# A tuple: annotations need not be hashable.
_SCALARS = tuple(kind | none for kind in (str, int, float, bool, bytes, UUID, date, datetime) for none in (kind, None))
_UNTYPED = (inspect.Parameter.empty, Any, object)


class Signature(NamedTuple):
    """What a call of the function needs."""

    struct: type[Struct]
    """One field per argument; those with a default of their own are UNSET when not sent, so that Python fills them in."""
    parameters: tuple[str, ...]
    required: tuple[str, ...]
    wants_context: bool
    returns: Any
    """Return annotation, ``Any`` without an annotation."""
    schema: dict[str, object]
    """JSON Schema of the arguments object."""
    by_position: bool = False
    """No parameter is keyword-only."""
    texts: tuple[str, ...] = ()
    """Parameters that are text; ``bytes`` would arrive there as base64."""
    mappings: bool = True
    """Some parameter may hold a mapping."""
    models: Mapping[str, ModelType] = MappingProxyType({})
    """Parameters that pydantic reads; their fields in ``struct`` are JSON as it came."""
    returned_model: ModelType | None = None
    """The return annotation, if pydantic reads it."""
    has_dependencies: bool = False
    """Some parameters, or what stands in their annotations, are resolved at the call and are no arguments of the job."""


def read_signature(function: Callable[..., object], name: str) -> Signature:
    """Signature of a handler.

    Raises:
        ConfigError: positional-only, ``*args`` or ``**kwargs`` parameters, an annotation that cannot be resolved, or one
            that JSON cannot carry.
    """
    hints = _hints(function, name)
    parameters = list(inspect.signature(function).parameters.values())
    wants_context = bool(parameters) and _is_context(parameters[0], hints)
    if wants_context:
        del parameters[0]
    dependencies = dependencies_of(function, name)
    if dependencies:
        parameters = [one for one in parameters if one.name not in dependencies]
    for parameter in parameters:
        _refuse_unsendable(parameter, name, hints)
    fields, models = _fields(parameters, hints, name)
    struct = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True, gc=False)
    returns = hints.get("return", Any)
    if returns in (typing.NoReturn, typing.Never, *_UNTYPED):
        returns = Any
    returned_model = None
    if has_model(returns):
        returned_model = ModelType(returns, f"handler {name!r}: return value", "the result")
    else:
        _check_type(returns, f"handler {name!r}: return value")
    names = tuple(parameter.name for parameter in parameters)
    required = tuple(one.name for one in parameters if one.default is inspect.Parameter.empty)
    by_position = all(parameter.kind is not inspect.Parameter.KEYWORD_ONLY for parameter in parameters)
    schema = _schema(struct, parameters, models)
    texts = tuple(name for name in names if hints.get(name) in (str, str | None))
    mappings = any(hints.get(name) not in _SCALARS for name in names)
    return Signature(
        struct, names, required, wants_context, returns, schema, by_position, texts, mappings, models, returned_model,
        has_dependencies=dependencies is not None,
    )  # fmt: skip


def _fields(
    parameters: list[inspect.Parameter], hints: dict[str, Any], name: str
) -> tuple[list[tuple[str, Any, Any]], dict[str, ModelType]]:
    """Fields of the struct: name, type, default. And the types of those that pydantic reads."""
    fields: list[tuple[str, Any, Any]] = []
    models: dict[str, ModelType] = {}
    for parameter in parameters:
        where = f"handler {name!r}: parameter {parameter.name!r}"
        annotation = hints.get(parameter.name, Any)
        if has_model(annotation):
            models[parameter.name] = ModelType(annotation, where, f"argument {parameter.name!r}")
            annotation = msgspec.Raw
        else:
            annotation = _described(annotation)
            _check_type(annotation, where)
        if annotation in _UNTYPED:
            annotation = Any
        if parameter.default is inspect.Parameter.empty:
            fields.append((parameter.name, annotation, msgspec.NODEFAULT))
        elif annotation is Any or annotation is msgspec.Raw:
            fields.append((parameter.name, annotation, UNSET))
        else:
            fields.append((parameter.name, annotation | UnsetType, UNSET))
    return fields, models


def _hints(function: Callable[..., object], name: str) -> dict[str, Any]:
    try:
        # JobContext may be imported under TYPE_CHECKING only; everything else must be resolvable.
        return typing.get_type_hints(function, localns={"JobContext": JobContext}, include_extras=True)
    except NameError as error:
        raise ConfigError(
            f"handler {name!r}: an annotation cannot be resolved: {error}",
            hint="define or import the type at module level before the handler, not under TYPE_CHECKING",
        ) from None
    except TypeError as error:
        raise ConfigError(f"handler {name!r}: its annotations cannot be read: {error}") from None


def takes_context(function: Callable[..., object]) -> bool:
    """The first parameter is the job's context: annotated as ``JobContext``, or named ``ctx``."""
    parameters = list(inspect.signature(function).parameters.values())
    return bool(parameters) and _is_context(parameters[0], _hints(function, getattr(function, "__qualname__", "?")))


def _is_context(parameter: inspect.Parameter, hints: dict[str, Any]) -> bool:
    hint = hints.get(parameter.name)
    return hint is JobContext or typing.get_origin(hint) is JobContext or parameter.name == "ctx"


def _refuse_unsendable(parameter: inspect.Parameter, name: str, hints: dict[str, Any]) -> None:
    where = f"handler {name!r}: parameter {parameter.name!r}"
    if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
        raise ConfigError(f"{where} is positional-only; arguments travel by name", hint="remove the '/'")
    if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
        raise ConfigError(f"{where} is '*{parameter.name}'; arguments travel by name", hint="take a list instead")
    if parameter.kind is inspect.Parameter.VAR_KEYWORD:
        raise ConfigError(
            f"{where} is '**{parameter.name}'; arguments could not be checked at submit", hint="take a dict instead"
        )
    if _is_context(parameter, hints):
        raise ConfigError(f"{where} is the job's context but does not stand first", hint="move it to the front")


def _check_type(annotation: Any, where: str) -> None:
    if annotation in _UNTYPED:
        return
    try:
        msgspec.json.Decoder(annotation)
        msgspec.json.schema(annotation)
    except TypeError as error:
        reason = str(error).strip().splitlines()[-1]
        raise ConfigError(
            f"{where} has a type that JSON cannot carry: {reason}",
            hint="use plain types, dataclasses, TypedDicts, enums, msgspec structs or pydantic 2 models (not in structs), or "
            "leave the annotation out",
        ) from None


def _described(annotation: Any) -> Any:
    """The same type, whose schema names what ``msgspec`` leaves out: that a text is a moment, and what keys are."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return typing.Annotated[_described(inner[0]), *annotation.__metadata__]
    if annotation in (datetime, time):
        name = "date-time" if annotation is datetime else "time"
        return typing.Annotated[annotation, msgspec.Meta(extra_json_schema={"format": name})]
    if origin in (dict, Mapping) and len(inner) == 2:
        whole = dict[_described(inner[0]), _described(inner[1])]  # type: ignore[misc, valid-type]  # made at run time
        keys = msgspec.json.schema(inner[0]) if inner[0] in (int, float, date, UUID) else None
        return typing.Annotated[whole, msgspec.Meta(extra_json_schema={"propertyNames": keys})] if keys else whole
    if origin in (list, set, frozenset, tuple):
        return origin[tuple(item if item is ... else _described(item) for item in inner)]
    if origin in (typing.Union, UnionType):
        return typing.Union[tuple(_described(item) for item in inner)]  # noqa: UP007  # made at run time
    return annotation


def _schema(
    struct: type[Struct], parameters: list[inspect.Parameter], models: dict[str, ModelType]
) -> dict[str, object]:
    """Schema with the struct itself at the top and the defaults of the function, where JSON can express them."""
    (top,), components = msgspec.json.schema_components([struct], ref_template="#/$defs/{name}")
    schema: dict[str, Any] = dict(components.pop(top["$ref"].removeprefix("#/$defs/")))
    if models:
        of_models, definitions = model_schemas(models, components)
        schema["properties"].update(of_models)
        components.update(definitions)
    for parameter in parameters:
        if parameter.default is inspect.Parameter.empty:
            continue
        try:
            default = msgspec.to_builtins(parameter.default, enc_hook=plain_foreign)
        except (TypeError, ValueError):
            continue
        schema["properties"][parameter.name] = {**schema["properties"][parameter.name], "default": default}
    if components:
        schema["$defs"] = components
    return schema


def readable(error: Exception) -> str:
    """One sentence of a validation error, naming the argument: ``argument 'width': expected int, got str``."""
    if isinstance(error, RecursionError):
        return "the arguments are nested too deeply"
    match = _PLACE.match(str(error))
    what = (match["what"] if match else str(error)).replace("`", "")
    what = what[:1].lower() + what[1:]
    if match and match["name"]:
        return f"argument {match['name']!r}{match['rest']}: {what}"
    return what
