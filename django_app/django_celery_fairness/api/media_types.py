"""Reads and writes JSON as the Open Job Spec does, and describes both media types.

Invariant: a value is written as its ``model_dump(mode="json")``: times in RFC 3339 with ``Z``.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

from django.http import HttpRequest
from ninja.parser import Parser
from ninja.renderers import BaseRenderer
from pydantic_core import to_json

from django_celery_fairness.api.errors import MEDIA_TYPE, ApiError

#: Media types of a request's body.
ACCEPTED = (MEDIA_TYPE, "application/json")


class OjsRenderer(BaseRenderer):
    """Writes answers."""

    media_type = MEDIA_TYPE

    def render(self, request: HttpRequest, data: Any, *, response_status: int) -> bytes:
        """Return the body of an answer."""
        # JSON has no NaN.
        return to_json(data, inf_nan_mode="null")


class OjsParser(Parser):
    """Reads bodies."""

    def parse_body(self, request: HttpRequest) -> Any:
        """Return the body of a request.

        Raises:
            ApiError: It has another media type, or is no JSON.
        """
        if request.content_type not in ACCEPTED:
            text = f"expected a body of {' or '.join(ACCEPTED)}, got: {request.content_type!r}"
            raise ApiError(415, "unsupported_media_type", text)
        try:
            return json.loads(request.body.decode(), parse_constant=_refuse)
        except (ValueError, RecursionError) as error:
            text = "expected a body in JSON and UTF-8"
            raise ApiError(400, "invalid_request", text) from error


def _refuse(name: str) -> NoReturn:
    # Python's own JSON has NaN and Infinity, which JSON has not.
    raise ValueError(name)
