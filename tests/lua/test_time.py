"""The pieces that read the server's time, beside TIME in the same script.

Newer servers let time stand still in a script; on older ones a millisecond may end between.
"""

from __future__ import annotations

import pytest

from celery_fairness.store import scripts

NOW = 1_760_000_000_123


@pytest.fixture
def read(redis_url, client):
    """What a piece says is now, and the server's time in milliseconds."""

    def read(folder, piece, call):
        source = scripts._expand(folder, f"includes/{piece}.lua", set())
        now, (seconds, microseconds) = client.eval(
            f'{source} local now = {call} return {{now, redis.call("TIME")}}', 0
        )
        return now, int(seconds) * 1000 + int(microseconds) // 1000

    return read


PIECES = [
    ("dispatch", "now", "server_now({})"),
    ("", "clock", 'read_clock("no clock", 15000, {})'),
]


@pytest.mark.parametrize(("folder", "piece", "call"), PIECES)
def test_microseconds_are_cut_off(client, folder, piece, call):
    source = scripts._expand(folder, f"includes/{piece}.lua", set())
    stopped = """
        local server = redis
        local redis = {call = function(name, ...)
          if name == "TIME" then return {"1760000000", "999998"} end
          return server.call(name, ...)
        end}
    """
    unfrozen = call.format('""')
    now = client.eval(f"{stopped} {source} local now = {unfrozen} return now", 0)
    assert now == 1_760_000_000_999


@pytest.mark.parametrize(("folder", "piece", "call"), PIECES)
def test_it_is_the_servers_time_unless_a_test_says_another(read, folder, piece, call):
    # Often, so that the milliseconds are of every kind.
    seen = [read(folder, piece, call.format('""')) for _ in range(40)]
    passed = [server - now for now, server in seen]
    assert set(passed) <= {0, 1}, passed
    assert passed.count(0) > passed.count(1)
    assert read(folder, piece, call.format(f'"{NOW}"'))[0] == NOW
