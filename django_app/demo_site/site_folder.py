"""The folder of everything that a running site writes: database, secret key, logs.

Invariant: only its owner can read it.

Weakness: two sites with one folder share their sessions.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def site_folder() -> Path:
    """Return the folder, DEMO_SITE_DIR or by default ``django_app/.site``; make it if needed."""
    given = os.environ.get("DEMO_SITE_DIR")
    folder = Path(given) if given else Path(__file__).resolve().parent.parent / ".site"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def secret_key() -> str:
    """Return DJANGO_SECRET_KEY, or a key that is made once for this checkout.

    Two processes that start at the same time use the same key. A file appears as a whole, and the
    first one stays.
    """
    given = os.environ.get("DJANGO_SECRET_KEY")
    if given:
        return given
    path = site_folder() / "secret_key"
    if not path.exists():
        draft = path.with_suffix(f".{os.getpid()}")
        draft.touch(mode=0o600)
        draft.write_text(secrets.token_urlsafe(50))
        try:
            os.link(draft, path)
        except FileExistsError:
            pass  # Another process was first; its key counts.
        draft.unlink()
    return path.read_text()
