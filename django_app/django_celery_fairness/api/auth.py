"""Admits requests: by a token or a session, with a permission to read or to write.

Reading needs Django's ``view`` permission of the route's model, and writing needs ``change``. A
token has a scope, and may do no more than its owner if it has one.

Invariant: a wrong token never falls back to the session of a cookie. A session is checked against
forgery (CSRF), a token is not, because no browser sends it by itself.

Weakness: tokens are rows, so nothing answers while the database is away, health included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.http import HttpRequest
from ninja.security.base import AuthBase
from ninja.utils import check_csrf

from django_celery_fairness import tokens
from django_celery_fairness.api.errors import ApiError

#: Methods that read.
READS = ("GET", "HEAD", "OPTIONS")
#: The extensions of the Open Job Spec that are served, by their names.
EXTENSIONS = ("rate-limiting", "urn:ojs:ext:rate-limiting")


@dataclass(frozen=True, slots=True)
class Caller:
    """The person or the program that makes a request.

    Attributes:
        name: For logs and overrides: a user's name, or the token's.
        user: The user of the session, or the owner of the token. None if it has none.
    """

    name: str
    user: Any


class Token(AuthBase):
    """``Authorization: Bearer TOKEN``."""

    openapi_type = "http"
    openapi_scheme = "bearer"

    def __init__(self, model: str) -> None:
        super().__init__()
        self._model = model

    def __call__(self, request: HttpRequest) -> Caller | None:
        """Return the caller; None without a token.

        Raises:
            ApiError: The token is unknown or revoked, or may not do this.
        """
        scheme, _, text = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != self.openapi_scheme:
            return None
        found = tokens.find(text)
        if found is None:
            raise ApiError(401, "unauthorized", "the token is unknown or revoked")
        in_scope = request.method in READS or found.may_write
        by_owner = found.owner is None or found.owner.has_perm(_permission(request, self._model))
        return _admitted(
            request, Caller(f"token {found.name}", found.owner), allowed=in_scope and by_owner
        )


class Session(AuthBase):
    """The cookie of a Django session."""

    openapi_type = "apiKey"
    openapi_in = "cookie"
    openapi_name = settings.SESSION_COOKIE_NAME

    def __init__(self, model: str) -> None:
        super().__init__()
        self._model = model

    def __call__(self, request: HttpRequest) -> Caller | None:
        """Return the caller; None without a session.

        Raises:
            ApiError: The request may be forged, or the user may not do this.
        """
        # A project may do without sessions.
        user: Any = getattr(request, "user", None)
        if user is None or not user.is_authenticated:
            return None
        if check_csrf(request) is not None:
            text = "the CSRF token is missing or wrong: send it in the header X-CSRFToken"
            raise ApiError(403, "forbidden", text)
        allowed = user.has_perm(_permission(request, self._model))
        return _admitted(request, Caller(user.get_username(), user), allowed=allowed)


def access(model: str) -> list[Any]:
    """Return what admits requests to routes whose permissions are those of a model."""
    return [Token(model), Session(model)]


def admit(request: HttpRequest, model: str = "tier") -> Caller:
    """Return the caller of a request that no route of ninja serves.

    Raises:
        ApiError: The request has no caller, or the caller may not do this.
    """
    for way in access(model):
        caller: Caller | None = way(request)
        if caller is not None:
            return caller
    raise ApiError(401, "unauthorized", "send a token: Authorization: Bearer TOKEN")


def _permission(request: HttpRequest, model: str) -> str:
    action = "view" if request.method in READS else "change"
    return f"django_celery_fairness.{action}_{model}"


def _admitted(request: HttpRequest, caller: Caller, *, allowed: bool) -> Caller:
    """Return a caller who may do this, if the server has the extensions that the request needs."""
    if not allowed:
        text = f"{caller.name} may not {'read' if request.method in READS else 'write'} this"
        raise ApiError(403, "forbidden", text)
    needed = request.headers.get("OJS-Requires-Extension", "")
    for name in filter(None, map(str.strip, needed.split(","))):
        if name not in EXTENSIONS:
            text = f"expected extensions of {', '.join(EXTENSIONS)}, got: {name!r}"
            raise ApiError(422, "EXTENSION_NOT_SUPPORTED", text)
    return caller
