"""Receipts and views of jobs in responses of web frameworks that write with pydantic. pydantic is loaded by them alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from jobmaster.model.job import Priority

PRIORITY_LABEL: Any = Literal[tuple(priority.label for priority in Priority)]
"""A priority as a response shows it."""


def response_schema(kind: type, fields: Mapping[str, Any], generate: Any) -> Any:
    """The schema with which pydantic writes an object of ``kind``, and describes it in OpenAPI. None is read.

    Args:
        fields: attribute -> type.
        generate: the handler that pydantic gives to ``__get_pydantic_core_schema__``.
    """
    from pydantic_core import core_schema

    written = core_schema.typed_dict_schema(
        {name: core_schema.typed_dict_field(generate.generate_schema(one)) for name, one in fields.items()}
    )

    def write(value: object) -> dict[str, object]:
        found = {name: getattr(value, name) for name in fields}
        return {name: one.label if isinstance(one, Priority) else one for name, one in found.items()}

    return core_schema.is_instance_schema(
        kind, serialization=core_schema.plain_serializer_function_ser_schema(write, return_schema=written)
    )
