"""The rights of a user of Redis that the docs list."""

from __future__ import annotations

import re
from pathlib import Path

_PAGE = Path(__file__).parents[2] / "docs/how-to/connect-redis.md"


def rights_of(who: str) -> list[str]:
    """Return the words of ``ACL SETUSER`` for a ``worker`` or a ``producer``."""
    (line,) = re.findall(rf"^{who} +(.*)$", _PAGE.read_text(), re.MULTILINE)
    return re.findall(r"\([^)]*\)|\S+", line)
