"""What a script and the lifetime of what it wrote are, asked in one transaction.

A server's time stands still in a transaction since 7.2. Before, it goes on by a millisecond now and
then: there a lifetime just below a whole second is read as that second.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis import Redis

from celery_fairness.store.library import library, load

SLACK_MS = 100
SECOND_MS = 1000


def slack_ms(client: Redis) -> int:
    """Return by how much less a lifetime may be when it is read than when it was set."""
    version = client.info("server")["redis_version"]
    return 0 if tuple(map(int, version.split("."))) >= (7, 2) else SLACK_MS


def run_and_look(
    client: Redis, function: str, prefix: str, args: Sequence[Any], looked_at: Sequence[str]
) -> tuple[Any, dict[str, int]]:
    """Call a function; return its answer and lifetimes in ms (-1: for ever, -2: no such key)."""
    load(client.execute_command)
    with client.pipeline(transaction=True) as pipe:
        pipe.fcall(library().function(function), 1, prefix, *args)
        for key in looked_at:
            pipe.pttl(key)
        answer, *lives = pipe.execute()
    slack = slack_ms(client)
    missing = [-life % SECOND_MS for life in lives]
    whole = [
        life + less if life > 0 and less <= slack else life
        for life, less in zip(lives, missing, strict=True)
    ]
    return answer, dict(zip(looked_at, whole, strict=True))
