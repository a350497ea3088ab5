"""The errors of the API, all in one form: those of a request, of the library, and of Django.

::

    {"error": {"code", "message", "retryable", "details"?, "request_id"}}

Invariant: no answer has a traceback. An exception that is not in the table is logged, and its
answer has only the id under which it was logged.

Weakness: the library raises a plain ``ValueError`` for an argument that it rejects. So a plain
``ValueError`` of a mistake in this package is a conflict too, with its text.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any
from uuid import uuid4

from django.core.exceptions import RequestDataTooBig, SuspiciousOperation
from django.core.exceptions import ValidationError as RowInvalid
from django.db import IntegrityError, InterfaceError, OperationalError
from django.db.models import ProtectedError
from django.http import Http404, HttpRequest, HttpResponse, UnreadablePostError
from ninja.errors import AuthenticationError, HttpError
from ninja.errors import ValidationError as RequestInvalid

from celery_fairness.errors import (
    LimiterUnavailable,
    NotFound,
    NotWired,
    ProblemsError,
    SettingsError,
    TenantError,
    got,
)

logger = logging.getLogger("celery_fairness")

#: Problems that one answer lists. A body may have a hundred thousand.
PROBLEMS_AT_MOST = 20
#: The media type of the Open Job Spec.
MEDIA_TYPE = "application/openjobspec+json"


#: Patterns of texts in the document, and in words for errors.
EVENT_ID = r"^evt_[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$"
NO_NUL = r"^[^\x00]*$"
TIER_NAME = r"^[A-Za-z0-9_-]{1,100}$"
_IN_WORDS = {
    EVENT_ID: "expected the id of an event, as the last answer has it: evt_…",
    NO_NUL: "expected a text without NUL",
    TIER_NAME: "expected 1 to 100 letters, digits, hyphens and underscores",
}


class ApiError(Exception):
    """An error with its answer.

    Attributes:
        status: HTTP status.
        code: The code of the error, for programs.
        message: What is wrong and what to do, for people.
        retryable: Whether the same request may succeed later.
        details: More about it, or None.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        retryable: bool = False,
        details: Any = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.retryable = retryable
        self.details = details


#: Status and code by exception. The first base class that is here decides.
_ANSWERS: dict[type[Exception], tuple[int, str]] = {
    Http404: (404, "not_found"),
    NotFound: (404, "not_found"),
    AuthenticationError: (401, "unauthorized"),
    UnreadablePostError: (400, "invalid_request"),
    SuspiciousOperation: (400, "invalid_request"),
    RequestDataTooBig: (413, "too_large"),
    ProblemsError: (409, "conflict"),
    TenantError: (409, "conflict"),
    IntegrityError: (409, "conflict"),
    RowInvalid: (409, "conflict"),
    ProtectedError: (409, "conflict"),
    LimiterUnavailable: (503, "unavailable"),
    OperationalError: (503, "unavailable"),
    InterfaceError: (503, "unavailable"),
    NotWired: (503, "unavailable"),
    # An invalid setting is no mistake of the request.
    SettingsError: (500, "internal_error"),
    Exception: (500, "internal_error"),
}
#: Errors that end without a change of the request or of the project.
_PASSING = (LimiterUnavailable, OperationalError, InterfaceError)
#: Errors whose text could show parts of statements or of rows.
_TEXTS: dict[type[Exception], str] = {
    Http404: "there is nothing at this address",
    AuthenticationError: "send a token: Authorization: Bearer TOKEN",
    IntegrityError: "another request has changed the same row; read it again",
    OperationalError: "the database does not answer",
    InterfaceError: "the database does not answer",
}


def api_error(error: Exception) -> ApiError:
    """Return any exception as an error with its answer."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RequestInvalid):
        return _invalid(error)
    if isinstance(error, HttpError) and isinstance(error.__cause__, ApiError):
        # Ninja wraps the errors of a parser.
        return error.__cause__
    if isinstance(error, HttpError) and not isinstance(error, AuthenticationError):
        return ApiError(error.status_code, "invalid_request", str(error))
    # Its subclasses, such as UnicodeEncodeError, are no answers of the library.
    plain = type(error) is ValueError
    kind = next(each for each in type(error).__mro__ if each in _ANSWERS)
    status, code = (409, "conflict") if plain else _ANSWERS[kind]
    if status == HTTPStatus.INTERNAL_SERVER_ERROR:
        return ApiError(status, code, "the server failed; its log has the reason")
    if isinstance(error, ProtectedError):
        return ApiError(status, code, str(error.args[0]))
    if isinstance(error, RowInvalid):
        fields = error.message_dict if hasattr(error, "error_dict") else {"": error.messages}
        text = "; ".join(f"{name}: {' '.join(found)}" for name, found in fields.items())
        return ApiError(status, code, text, details=fields)
    text = _TEXTS.get(kind) or str(error)
    return ApiError(status, code, text, retryable=isinstance(error, _PASSING))


def _invalid(error: RequestInvalid) -> ApiError:
    """Return the error of a request that does not match the schema, with its first problems."""
    problems = []
    for each in error.errors[:PROBLEMS_AT_MOST]:
        # The second part of a place in the body is the name of our parameter.
        place = [str(part) for part in each["loc"]]
        where = ".".join(place[:1] + place[2:] if place[0] == "body" else place)
        pattern = each.get("ctx", {}).get("pattern", "")
        problem = _IN_WORDS.get(pattern) or str(each["msg"]).removeprefix("Value error, ")
        problems.append({"where": where[:200], "problem": problem})
    text = "; ".join(f"{each['where']}: {each['problem']}" for each in problems)
    return ApiError(400, "invalid_request", text, details={"problems": problems})


def answer(request: HttpRequest, error: Any) -> HttpResponse:
    """Return the answer to a request that failed."""
    found = api_error(error)
    request_id = f"req_{uuid4().hex}"
    if found.status == HTTPStatus.INTERNAL_SERVER_ERROR:
        path = got(request.path, 300)
        logger.error("%s %s failed (%s)", request.method, path, request_id, exc_info=error)
    body = {
        "code": found.code,
        "message": found.message,
        "retryable": found.retryable,
        **({} if found.details is None else {"details": found.details}),
        "request_id": request_id,
    }
    # json writes a lone surrogate as an escape, and a name in the request may have one.
    response = HttpResponse(
        json.dumps({"error": body}, default=str), status=found.status, content_type=MEDIA_TYPE
    )
    response["X-Request-Id"] = request_id
    if found.status == HTTPStatus.UNAUTHORIZED:
        response["WWW-Authenticate"] = "Bearer"
    return response


@contextmanager
def named_in_url() -> Iterator[None]:
    """Answer 404 if a name in a path or a query has a form that nothing can have."""
    try:
        yield
    except (ProblemsError, TenantError, ValueError) as error:
        raise ApiError(404, "not_found", str(error)) from error
