"""What the log has of a change that an operator makes: a line for each, with the key as a field."""

from __future__ import annotations

import pytest

from tests.support.json_log import json_lines


@pytest.mark.parametrize("url", ["", "stock"], ids=["fairredis", "gate"])
def test_each_hold_and_its_end_is_a_line(make_fairness, redis_url, url):
    fairness = make_fairness(url=redis_url if url else "")
    with json_lines() as log:
        fairness.limits.pause("api", by="ada")
        fairness.limits.resume("api", by="ada")
        fairness.tenants.pause("42", for_seconds=60, by="ada")
        fairness.limits.cool_down("api", for_seconds=30, reason="429")
        fairness.limits.clear_cool_down("api")
    texts = [(each["level"], each["message"]) for each in log.lines]
    (paused,) = (text for _, text in texts if "tenant:42" in text)
    assert paused.startswith("tenant:42 is paused until 20")
    assert paused.endswith(", by ada")
    assert texts[:2] == [
        ("INFO", "api is paused until it is resumed, by ada"),
        ("INFO", "api is resumed, by ada"),
    ]
    assert texts[3:] == [
        ("WARNING", "api cools down for 30.0 s: 429"),
        ("INFO", "the cool-down of api is cleared"),
    ]
    keys = ["api", "api", "tenant:42", "api", "api"]
    assert log.fields == [{"key": key} for key in keys]
