"""Admits requests: by a token or a session that may do the action of the route.

The table of :mod:`~django_celery_fairness.permissions` has the permission of each action. A token
has a scope, and may do no more than its owner if it has one.

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
from django_celery_fairness.permissions import Action, allowed_any

#: The extensions of the Open Job Spec that are served, by their names.
EXTENSIONS = ("rate-limiting", "urn:ojs:ext:rate-limiting")


@dataclass(frozen=True, slots=True)
class Caller:
    """The person or the program that makes a request.

    Attributes:
        name: For logs and overrides: a user's name, or the token's.
        user: The user of the session, or the owner of the token. None if it has none.
        writes: Whether the scope of the token has writing. A session has it.
    """

    name: str
    user: Any
    writes: bool = True

    def may(self, action: Action) -> bool:
        """Return whether it may do an action."""
        in_scope = self.writes or not action.writes
        return in_scope and (self.user is None or action.allowed(self.user))

    def expect(self, *actions: Action) -> None:
        """Expect a caller who may do one of these actions; without any, any action of this app.

        Raises:
            ApiError: It may not. The message names the permissions.
        """
        if not actions:
            if self.user is not None and not allowed_any(self.user):
                raise ApiError(403, "forbidden", f"{self.name} has no permission of this app")
            return
        if any(map(self.may, actions)):
            return
        if not self.writes and all(action.writes for action in actions):
            raise ApiError(403, "forbidden", f"{self.name} may not write: its scope is read")
        what = " or ".join(action.words for action in actions)
        needed = " or ".join(action.permission for action in actions)
        text = f"{self.name} may not {what}: expected the permission {needed}"
        raise ApiError(403, "forbidden", text)


class Token(AuthBase):
    """``Authorization: Bearer TOKEN``."""

    openapi_type = "http"
    openapi_scheme = "bearer"

    def __init__(self, actions: tuple[Action, ...]) -> None:
        super().__init__()
        self._actions = actions

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
        caller = Caller(f"token {found.name}", found.owner, found.may_write)
        return _admitted(request, caller, self._actions)


class Session(AuthBase):
    """The cookie of a Django session."""

    openapi_type = "apiKey"
    openapi_in = "cookie"
    openapi_name = settings.SESSION_COOKIE_NAME

    def __init__(self, actions: tuple[Action, ...]) -> None:
        super().__init__()
        self._actions = actions

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
        return _admitted(request, Caller(user.get_username(), user), self._actions)


def access(*actions: Action) -> list[Any]:
    """Return what admits callers who may do one of these actions; without any, any of this app."""
    return [Token(actions), Session(actions)]


def caller_of(request: HttpRequest) -> Caller:
    """Return the caller of a request that a route has admitted."""
    caller: Caller = request.auth  # type: ignore[attr-defined]  # ninja sets it
    return caller


def admit(request: HttpRequest, *actions: Action) -> Caller:
    """Return the caller of a request that no route of ninja serves.

    Raises:
        ApiError: The request has no caller, or the caller may not do this.
    """
    for way in access(*actions):
        caller: Caller | None = way(request)
        if caller is not None:
            return caller
    raise ApiError(401, "unauthorized", "send a token: Authorization: Bearer TOKEN")


def _admitted(request: HttpRequest, caller: Caller, actions: tuple[Action, ...]) -> Caller:
    """Return a caller who may do this, if the server has the extensions that the request needs."""
    caller.expect(*actions)
    needed = request.headers.get("OJS-Requires-Extension", "")
    for name in filter(None, map(str.strip, needed.split(","))):
        if name not in EXTENSIONS:
            text = f"expected extensions of {', '.join(EXTENSIONS)}, got: {name!r}"
            raise ApiError(422, "EXTENSION_NOT_SUPPORTED", text)
    return caller
