"""The database of the demo site, from one variable.

Invariant: the error for an invalid URL names the variable, gives an example, and never shows the
password.

Weakness: SQLite and PostgreSQL only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from django.core.exceptions import ImproperlyConfigured

EXAMPLES = "postgresql://user:password@localhost:5432/site, or sqlite:////tmp/site.sqlite3"


def database_from(url: str, default_path: Path) -> dict[str, Any]:
    """Return the entry of ``DATABASES`` for ``url``.

    Args:
        url: DATABASE_URL. An empty one is SQLite at ``default_path``. A PostgreSQL server on a
            unix socket is ``postgresql:///site?host=/run/postgresql``.
        default_path: The file of SQLite, if the URL names none.

    Raises:
        ImproperlyConfigured: Another scheme, or no database name.
    """
    if not url:
        return _sqlite(str(default_path))
    parts = urlsplit(url)
    name = unquote(parts.path[1:])
    if parts.scheme == "sqlite" and name:
        return _sqlite(name)
    if parts.scheme in ("postgres", "postgresql") and name:
        options = dict(parse_qsl(parts.query))
        return {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": name,
            "USER": unquote(parts.username or ""),
            "PASSWORD": unquote(parts.password or ""),
            "HOST": options.pop("host", "") or parts.hostname or "",
            "PORT": options.pop("port", "") or str(parts.port or ""),
            "OPTIONS": options,
        }
    raise ImproperlyConfigured(
        f"DATABASE_URL: expected {EXAMPLES}, got a URL with scheme {parts.scheme!r}"
        + ("" if name else " and no database name")
    )


def _sqlite(path: str) -> dict[str, Any]:
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": path,
        "OPTIONS": {
            # Two workers and a web server write to one file. With WAL, readers do not block the
            # writer. With IMMEDIATE, a transaction takes the write lock first, so it can wait.
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
        },
    }
