"""The JSON Schema of values, as their dumps are.

Pydantic has no schema of a serializer's answer: it would be an object with any fields. The
serializers of this package leave out fields that have a default, and add none. So the schema of the
fields is that of the dump. An event has a schema of its own.
"""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema


class ByFields(GenerateJsonSchema):
    """Describes a value by its fields, as if it had no serializer."""

    def ser_schema(self, schema: Any) -> None:  # noqa: ARG002 - pydantic passes the serializer
        """Return none, so that the fields are used."""
        return


def schema_of(kind: Any, title: str) -> dict[str, Any]:
    """Return the schema of the dumps of a type, or of several types with bars between them."""
    schema = TypeAdapter(kind).json_schema(mode="serialization", schema_generator=ByFields)
    return {"$schema": ByFields.schema_dialect, **schema, "title": title}
