"""Arguments and results that pydantic describes.

An annotation is pydantic's when a model, another type with a pydantic schema, or one of pydantic's constraints stands
anywhere in it. One ``TypeAdapter`` reads and writes such an annotation as a whole, in JSON mode; ``msgspec`` does all others.
A program without models never loads pydantic: this module takes it from ``sys.modules``.
"""

from __future__ import annotations

import dataclasses
import sys
import typing
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from jobmaster.model.errors import ConfigError, InvalidArguments

if TYPE_CHECKING:
    from pydantic import TypeAdapter

PROBLEMS_MAX = 5
"""Wrong fields that one error names."""
_MARKS = ("__get_pydantic_core_schema__", "__pydantic_core_schema__")
_CONSTRAINTS = ("pydantic", "pydantic_core", "annotated_types")
"""Packages whose objects are constraints inside ``Annotated``."""
_ASTERISKS = "**********"
"""What pydantic writes in place of a secret."""
_MASKED = "holds a secret, which pydantic writes as asterisks: the handler would not get it"
_MASKED_HINT = "send a reference to the secret, or give its field a serializer"


# ---------------------------------------------------------------- which annotations are pydantic's


def has_model(annotation: Any) -> bool:
    """True when pydantic has to read the annotation."""
    return "pydantic" in sys.modules and _has_model(annotation, set())


def _has_model(annotation: Any, seen: set[Any]) -> bool:
    if typing.get_origin(annotation) is typing.Annotated:
        packages = {type(mark).__module__.partition(".")[0] for mark in annotation.__metadata__}
        if not packages.isdisjoint(_CONSTRAINTS):
            return True
    if isinstance(annotation, type):
        if annotation in seen or issubclass(annotation, msgspec.Struct):
            return False
        seen.add(annotation)
        if any(hasattr(annotation, mark) for mark in _MARKS):
            return True
        if not _has_fields(annotation):
            return False
        try:
            fields = typing.get_type_hints(annotation, include_extras=True)
        except (NameError, TypeError):
            return False  # msgspec refuses it, with the reason
        return any(_has_model(one, seen) for one in fields.values())
    alias = getattr(annotation, "__value__", None) or getattr(annotation, "__supertype__", None)
    if alias is not None:  # `type Orders = list[Order]`, and NewType
        if annotation in seen:
            return False
        seen.add(annotation)
        return _has_model(alias, seen)
    inner = typing.get_args(annotation)
    return any(_has_model(one, seen) for one in inner if not isinstance(one, str | int | bytes))


def _has_fields(kind: type) -> bool:
    if issubclass(kind, dict):
        return hasattr(kind, "__total__")  # a TypedDict, that of typing_extensions too
    return dataclasses.is_dataclass(kind) or (issubclass(kind, tuple) and hasattr(kind, "_fields"))


# ---------------------------------------------------------------- reading and writing


class ModelType:
    """One annotation of a handler that pydantic reads and writes.

    Args:
        where: names the parameter or the return value in a ``ConfigError``.

    Raises:
        ConfigError: JSON cannot carry the type.
    """

    __slots__ = ("_adapter", "_has_secrets", "_what")

    def __init__(self, annotation: Any, where: str, what: str) -> None:
        import pydantic
        from pydantic import TypeAdapter

        self._what = what
        """Names the value in the errors of jobs: ``argument 'order'``."""
        try:
            self._adapter: TypeAdapter[Any] = TypeAdapter(annotation)
            self._has_secrets = _has_secrets(self._adapter.json_schema())
        except (pydantic.PydanticUserError, pydantic.errors.PydanticUndefinedAnnotation, TypeError, NameError) as error:
            reason = str(error).strip().splitlines()[0]
            raise ConfigError(
                f"{where} has a type that JSON cannot carry: {reason}",
                hint="use pydantic models, plain types, dataclasses or enums in it; msgspec structs and models do not mix",
            ) from None

    def decode(self, data: bytes) -> Any:
        """The value; ``msgspec.ValidationError`` names every field that does not fit."""
        from pydantic import ValidationError

        try:
            return self._adapter.validate_json(data)
        except ValidationError as error:
            raise msgspec.ValidationError("; ".join(_problems(error, self._what))) from None
        except Exception as error:  # a validator is foreign code
            raise msgspec.ValidationError(
                f"{self._what}: a validator failed with {type(error).__name__}: {error}"
            ) from error

    def plain(self, value: object) -> object:
        """The value as JSON carries it; ``InvalidArguments`` when it cannot be written."""
        try:
            plain = self._adapter.dump_python(value, mode="json", by_alias=True, round_trip=True, warnings=False)
        except Exception as error:  # a serializer is foreign code
            raise InvalidArguments(f"{self._what} cannot be encoded as JSON: {error}") from None
        if self._has_secrets and _is_masked(plain):
            raise InvalidArguments(f"{self._what} {_MASKED}", hint=_MASKED_HINT)
        return plain


class ModelDecoder:
    """Decodes the arguments of a handler that has models: ``msgspec`` the object, pydantic the fields that are its own."""

    __slots__ = ("_decode", "_types")

    def __init__(self, struct: type[msgspec.Struct], types: Mapping[str, ModelType]) -> None:
        self._decode = msgspec.json.Decoder(struct).decode
        self._types = types

    def __call__(self, data: bytes) -> msgspec.Struct:
        """The struct; ``msgspec.ValidationError`` as ``ModelType.decode``."""
        found = self._decode(data)
        for name, kind in self._types.items():
            raw = getattr(found, name)
            if raw is not msgspec.UNSET:
                setattr(found, name, kind.decode(bytes(raw)))
        return found


def plain_arguments(types: Mapping[str, ModelType], args: Mapping[str, object]) -> dict[str, object]:
    """The arguments with the models among them as JSON carries them."""
    return {name: types[name].plain(value) if name in types else value for name, value in args.items()}


def plain_foreign(value: object) -> object:
    """A model where no annotation describes it, as JSON carries it: the hook of the encoder.

    Raises:
        TypeError: it is not pydantic's, or it holds a secret.
    """
    core = sys.modules.get("pydantic_core")
    kind: type = type(value)
    if core is None or not any(hasattr(kind, mark) for mark in _MARKS):
        raise TypeError(f"Encoding objects of type {kind.__name__} is unsupported")
    try:
        plain: object = core.to_jsonable_python(value, by_alias=True, round_trip=True)
    except Exception as error:  # a serializer is foreign code
        raise TypeError(f"a {kind.__name__} cannot be written: {error}") from None
    if _is_masked(plain) and _kind_has_secrets(kind):
        raise TypeError(f"it {_MASKED} ({_MASKED_HINT})")
    return plain


@lru_cache(1024)
def _kind_has_secrets(kind: Any) -> bool:
    from pydantic import PydanticUserError, TypeAdapter

    try:
        return _has_secrets(TypeAdapter(kind).json_schema())
    except PydanticUserError:
        return False


def _has_secrets(schema: object) -> bool:
    if isinstance(schema, dict):
        return schema.get("writeOnly") is True or any(_has_secrets(inner) for inner in schema.values())
    return isinstance(schema, list) and any(_has_secrets(inner) for inner in schema)


def _is_masked(plain: object) -> bool:
    if isinstance(plain, dict):
        return any(_is_masked(inner) for inner in plain.values())
    if isinstance(plain, list):
        return any(_is_masked(inner) for inner in plain)
    return plain == _ASTERISKS


def _problems(error: Any, what: str) -> Iterator[str]:
    """One sentence per wrong field, each with its place."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    for one in found[:PROBLEMS_MAX]:
        message = one["msg"][:1].lower() + one["msg"][1:]
        yield f"{what}{_place(one['loc'])}: {message}"
    if len(found) > PROBLEMS_MAX:
        yield f"and {len(found) - PROBLEMS_MAX} more"


def _place(steps: Sequence[str | int]) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)


# ---------------------------------------------------------------- the published schema


def model_schemas(
    types: Mapping[str, ModelType], taken: Collection[str]
) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """JSON Schemas by argument, and the definitions that they share.

    Args:
        taken: names that other definitions of the same document have.
    """
    for template in ("{model}", "pydantic.{model}"):
        found, shared = _schemas(types, f"#/$defs/{template}")
        definitions = {template.format(model=name): one for name, one in shared.items()}
        if definitions.keys().isdisjoint(taken):
            break
    return found, definitions


def _schemas(types: Mapping[str, ModelType], template: str) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    from pydantic import TypeAdapter

    by_key, whole = TypeAdapter.json_schemas(
        [(name, "validation", kind._adapter) for name, kind in types.items()], ref_template=template
    )
    return {name: by_key[(name, "validation")] for name in types}, whole.get("$defs", {})
