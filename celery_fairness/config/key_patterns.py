"""Patterns: an override of ``api.*`` holds for each key that begins with ``api.``.

The function library finds the patterns of a key (``config.lua``). A pattern ends behind a separator
and has few of them. So a key has few patterns, and a look at a limit reads all of them at once.
"""

from __future__ import annotations

from celery_fairness.config.queue_limits import PREFIX
from celery_fairness.config.tenants import KEY_CHARACTERS, KEY_PATTERN
from celery_fairness.errors import got

#: The pattern of all limits without numbers of their own, and the last character of each pattern.
ANY = "*"
#: A pattern ends behind one of these.
SEPARATORS = ".:-"
#: Most separators of a pattern.
MAX_SEPARATORS = 7


def is_pattern(key: object) -> bool:
    """Return whether a typed key is that of many keys."""
    return isinstance(key, str) and key.endswith(ANY)


def check_pattern(pattern: str) -> None:
    """Check the key of an override that ends in ``*``.

    Raises:
        ValueError: It is no pattern, or one of tenants or whole queues, which have numbers
            elsewhere.
    """
    prefix = pattern.removesuffix(ANY)
    if prefix.startswith("tenant:"):
        raise ValueError(
            "key: expected no pattern of tenants, because the tier of tenants has their numbers, "
            f"got: {got(pattern)}"
        )
    if prefix == PREFIX:
        raise ValueError(
            "key: expected no pattern of queues, because each queue has a limit of its own "
            f"(celery -A APP fairness queue limit QUEUE), got: {got(pattern)}"
        )
    count = sum(map(prefix.count, SEPARATORS))
    is_key = len(pattern) <= KEY_CHARACTERS and KEY_PATTERN.fullmatch(prefix)
    ends_well = prefix.endswith(tuple(SEPARATORS)) and count <= MAX_SEPARATORS
    if prefix and not (is_key and ends_well):
        raise ValueError(
            "key: expected a pattern with * behind one of '.', ':' and '-', of which it has at "
            f"most {MAX_SEPARATORS}, such as 'api.*', or '*' alone, got: {got(pattern)}"
        )
