"""The addresses of the API: ``path("", include("django_celery_fairness.api.urls"))``.

Invariant: no request below ``/ojs/v1/`` has another answer than 401 without a name, even if its
address or its method does not exist.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from http import HTTPStatus
from typing import Any

from django.db import connections, transaction
from django.http import Http404, HttpRequest
from django.http.response import HttpResponseBase
from django.urls import URLPattern, include, path, re_path, register_converter
from django.utils.cache import patch_vary_headers
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET
from ninja.errors import HttpError
from ninja.errors import ValidationError as RequestInvalid

from django_celery_fairness import tokens
from django_celery_fairness.api import events, health, limits, queues, tasks, tenants
from django_celery_fairness.api.auth import admit
from django_celery_fairness.api.document import FairnessApi
from django_celery_fairness.api.errors import ApiError, answer
from django_celery_fairness.api.media_types import OjsParser, OjsRenderer


class Anything:
    """A part of a path that may have slashes and newlines: ids of tenants and tasks have them."""

    regex = "(?s:.+)"

    def to_python(self, value: str) -> str:
        """Return it unchanged."""
        return value

    def to_url(self, value: str) -> str:
        """Return it unchanged."""
        return value


register_converter(Anything, "anything")


def _for_readers(view: Any) -> Any:
    def admitted(request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
        admit(request)
        response: HttpResponseBase = require_GET(view)(request, **kwargs)
        return response

    return admitted


def _unknown(request: HttpRequest, **_kwargs: Any) -> HttpResponseBase:
    admit(request)
    raise Http404


def in_our_form(view: Callable[..., HttpResponseBase]) -> Callable[..., HttpResponseBase]:
    """Give every answer of a view the form of the API, also for a wrong method or an exception."""

    # A session is checked against forgery with its permission, and a token needs no check.
    @csrf_exempt
    @wraps(view)
    def answered(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        try:
            response = view(request, *args, **kwargs)
            if response.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
                response = _not_allowed(request, response["Allow"])
        except Exception as error:  # noqa: BLE001 - the answer to any error has this form
            response = answer(request, error)
        if response.status_code == HTTPStatus.NO_CONTENT:
            del response["Content-Type"]
        response["Cache-Control"] = "no-store"
        patch_vary_headers(response, ("Authorization", "Cookie"))
        return response

    for alias in connections:
        # A change is published on commit, and its answer shows what Redis has then.
        transaction.non_atomic_requests(using=alias)(answered)
    return tokens.taken(answered)


def _not_allowed(request: HttpRequest, methods: str) -> HttpResponseBase:
    admit(request)
    allowed = ", ".join(sorted(methods.split(", ")))
    text = f"expected one of {allowed}, got: {request.method}"
    response = answer(request, ApiError(405, "method_not_allowed", text))
    response["Allow"] = allowed
    return response


def _served(patterns: Any) -> list[URLPattern]:
    for pattern in patterns:
        # The document finds the root by its name. The root has no page.
        view = _unknown if pattern.name == "api-root" else pattern.callback
        pattern.callback = in_our_form(view)
    return list(patterns)


api = FairnessApi(
    title="celery-fairness",
    version="1.0",
    description="Limits, tenants, tasks and events, in the form of the Open Job Spec.",
    urls_namespace="celery_fairness",
    docs_url=None,
    docs_decorator=_for_readers,
    renderer=OjsRenderer(),
    parser=OjsParser(),
)
for _kind in (Exception, Http404, HttpError, RequestInvalid):
    api.add_exception_handler(_kind, answer)
for _module in (limits, queues, tenants, tasks, events, health):
    api.add_router("", _module.router)

_patterns, _app, _namespace = api.urls
urlpatterns = [
    path("ojs/v1/", include((_served(_patterns), _app), namespace=_namespace)),
    re_path(r"^ojs/v1(?:/|\Z)", in_our_form(_unknown)),
]
