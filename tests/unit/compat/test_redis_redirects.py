"""A redirection of a node of a cluster is read from each form that redis-py gives it."""

from __future__ import annotations

import pytest
from redis.exceptions import AskError, MovedError, ResponseError

from celery_fairness.compat.redis_redirects import Redirect, is_cross_slot, redirect_of


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MovedError("4122 127.0.0.1:7000"), Redirect(True, 4122, "127.0.0.1", 7000)),
        (AskError("4122 127.0.0.1:7000"), Redirect(False, 4122, "127.0.0.1", 7000)),
        (ResponseError("MOVED 4122 127.0.0.1:7000"), Redirect(True, 4122, "127.0.0.1", 7000)),
        (ResponseError("ASK 4122 127.0.0.1:7000"), Redirect(False, 4122, "127.0.0.1", 7000)),
        (ResponseError("MOVED 1 ::1:7000"), Redirect(True, 1, "::1", 7000)),
        (ResponseError("MOVED 1 :7000"), Redirect(True, 1, "", 7000)),
        (ResponseError("ERR unknown command"), None),
        (ConnectionError("MOVED 1 a:1"), None),
    ],
)
def test_a_redirect_is_read(error, expected):
    assert redirect_of(error) == expected


def test_keys_of_several_slots_are_known_by_their_text():
    assert is_cross_slot(ResponseError("CROSSSLOT Keys in request don't hash to the same slot"))
    assert not is_cross_slot(ResponseError("ERR other"))
