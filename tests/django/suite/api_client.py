"""A client of the HTTP API: requests with a token, and answers that have the form of the API."""

from __future__ import annotations

import json
from typing import Any

from django.test import Client
from django_celery_fairness import tokens

MEDIA_TYPE = "application/openjobspec+json"
ROOT = "/ojs/v1/"


class ApiClient:
    """Sends requests as the owner of one token."""

    def __init__(self, scope: str = "write", name: str = "", owner: Any = None) -> None:
        self.row, self.token = tokens.create(name or f"a {scope} token", scope, owner)

    def __call__(self, method: str, path: str, body: Any = None, **options: Any) -> Answer:
        """Send a request; a body that is no bytes is written as JSON."""
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        options.setdefault("content_type", MEDIA_TYPE)
        headers = {"Authorization": f"Bearer {self.token}", **options.pop("headers", {})}
        client = Client(raise_request_exception=False)
        sent = client.generic(method, ROOT + path, body or b"", headers=headers, **options)
        return Answer(sent)


class Answer:
    """An answer of the API."""

    def __init__(self, response: Any) -> None:
        self.status: int = response.status_code
        self.headers = response.headers
        self.content: bytes = response.content
        assert response["Cache-Control"] == "no-store"

    @property
    def json(self) -> Any:
        assert self.headers["Content-Type"] == MEDIA_TYPE
        return json.loads(self.content)

    @property
    def error(self) -> dict[str, Any]:
        """The error, whose form is checked."""
        assert self.status >= 400, (self.status, self.content)
        assert set(self.json) == {"error"}
        found: dict[str, Any] = self.json["error"]
        assert set(found) - {"details"} == {"code", "message", "retryable", "request_id"}
        assert isinstance(found["message"], str)
        assert found["retryable"] is (self.status == 503)
        assert found["request_id"] == self.headers["X-Request-Id"]
        return found

    def rejected(self, status: int, code: str) -> str:
        """Expect an error; return its message."""
        assert (self.status, self.error["code"]) == (status, code), self.content
        message: str = self.error["message"]
        return message
