"""P1: no-op tasks a second on `fairredis`, tier limits on, against stock Celery."""

from __future__ import annotations

from collections.abc import Iterator

from tests.benchmarks.harness import Row
from tests.benchmarks.turns import Contender, rates
from tests.support.redis_server import RedisServer

#: Pool, and the ratio that is asked for.
POOLS = (
    ("solo", ("--pool=solo",), 2.0),
    ("prefork -c 2", ("--pool=prefork", "--concurrency=2"), 1.5),
    ("prefork -c 8", ("--pool=prefork", "--concurrency=8"), 2.0),
    ("threads -c 8", ("--pool=threads", "--concurrency=8"), 3.0),
    ("gevent -c 8", ("--pool=gevent", "--concurrency=8"), 2.0),
)
#: What makes stock fastest: nothing is asked for while something is here.
BEST = ("--prefetch-multiplier=64",)


def rows(
    server: RedisServer, rounds: int, seconds: float, *, at_best: bool = False
) -> Iterator[Row]:
    """Measure every pool: stock and ours in turns.

    Args:
        server: To use.
        rounds: Turns of each.
        seconds: Of one turn.
        at_best: Also measure stock with more messages fetched ahead.
    """
    for name, args, asked in POOLS:
        contenders = [Contender("plain", args), Contender("fair", args, ours=True)]
        if at_best:
            contenders.append(Contender("plain", (*args, *BEST)))
        theirs, mine, *others = rates(server, contenders, rounds, seconds)
        yield Row(
            "P1",
            f"no-op tasks a second, {name}",
            f">= {asked:g} x stock",
            f"{mine:,.0f} against {theirs:,.0f}: {mine / theirs:.2f} x",
            mine / theirs >= asked,
        )
        if at_best:
            best = max(theirs, *others)
            yield Row(
                "P1",
                f"the same against stock at its best, {name}",
                "> 1 x",
                f"{mine:,.0f} against {best:,.0f}: {mine / best:.2f} x",
                mine > best,
            )
