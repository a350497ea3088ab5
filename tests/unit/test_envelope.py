"""What a message tells the scheduler of its time to expire."""

from __future__ import annotations

import pytest

from celery_fairness.transport.envelope import waiting_of
from celery_fairness.transport.options import DispatchOptions


@pytest.mark.parametrize(
    ("expires", "expires_ms"),
    [
        ("2026-01-01T00:00:00+00:00", 1_767_225_600_000),
        ("2026-01-01T01:00:00.250000+01:00", 1_767_225_600_250),
        ("2026-01-01T00:00:00Z", 1_767_225_600_000),
        # Long ago is not never.
        ("1960-01-01T00:00:00+00:00", 1),
        # Of the worker's time zone; and what Celery's workers cannot read.
        ("2026-01-01T00:00:00", 0),
        (1_767_225_600, 0),
        ("soon", 0),
        ("", 0),
        (None, 0),
    ],
)
def test_a_message_expires_when_its_header_says(expires, expires_ms):
    properties = {"delivery_tag": "t1", "delivery_info": {"exchange": ""}}
    message = {"headers": {"task": "shop.t", "expires": expires}, "properties": properties}
    assert waiting_of("jobs", message, DispatchOptions()).expires_ms == expires_ms
