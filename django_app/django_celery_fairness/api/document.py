"""The OpenAPI document: ninja's own, with the schemas of values that a serializer writes.

Pydantic has no schema of a serializer's answer. So :class:`Inspection` and :class:`Override` would
be objects with any fields. Here they are described by their fields.
"""

from __future__ import annotations

from typing import Any

from ninja import NinjaAPI
from ninja.openapi.schema import REF_TEMPLATE, OpenAPISchema
from ninja.operation import Operation
from pydantic import BaseModel

from celery_fairness.control.health.event_types import Event
from celery_fairness.control.key.views import OF_SPEC, Inspection, Override
from celery_fairness.util.json_schema import ByFields
from django_celery_fairness.api.errors import MEDIA_TYPE


class FairnessApi(NinjaAPI):
    """The API, whose document describes every answer and both media types of a body."""

    def get_content_type(self) -> str:
        """Return the media type of an answer. JSON has no ``charset``: it is UTF-8."""
        return MEDIA_TYPE

    def get_openapi_operation_id(self, operation: Operation) -> str:
        """Return the name of its function: clients are generated with it."""
        return operation.view_func.__name__

    def get_openapi_schema(self, **options: Any) -> OpenAPISchema:
        """Return the document."""
        document = super().get_openapi_schema(**options)
        schemas = document["components"]["schemas"]
        for model, names in ((Inspection, OF_SPEC), (Override, tuple(Override.model_fields))):
            schemas.update(_by_fields(model, names))
        schemas["Event"] = Event.model_json_schema(mode="serialization")
        for path in document["paths"].values():
            for operation in path.values():
                content = operation.get("requestBody", {}).get("content")
                if content:
                    content[MEDIA_TYPE] = content["application/json"]
        return document


def _by_fields(model: type[BaseModel], names: tuple[str, ...]) -> dict[str, Any]:
    """Return the schema of a model with some of its fields, and the schemas that it refers to."""
    found = model.model_json_schema(
        mode="serialization", ref_template=REF_TEMPLATE, schema_generator=ByFields
    )
    properties = {name: found["properties"][name] for name in names}
    kept = {"type": "object", "title": found["title"], "properties": properties}
    kept["required"] = [name for name in found.get("required", ()) if name in names]
    schemas = {model.__name__: kept}
    for name, schema in found.get("$defs", {}).items():
        if REF_TEMPLATE.format(model=name) in str(properties):
            schemas |= {name: schema}
    return schemas
