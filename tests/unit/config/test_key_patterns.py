"""Which texts are patterns of keys."""

from __future__ import annotations

import pytest

from celery_fairness.config.key_patterns import check_pattern, is_pattern

ERROR = "key: expected a pattern with \\* behind one of '.', ':' and '-', of which it has at most 7"


@pytest.mark.parametrize(
    "pattern", ["*", "api.*", "api:*", "api-*", "a.b.c.d.e.f.g.*", "queue:emails:*", "tenants:*"]
)
def test_a_pattern_ends_behind_a_separator_or_is_the_star_alone(pattern):
    assert is_pattern(pattern)
    check_pattern(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "api*",
        "api.s*",
        "api.**",
        "a.*.*",
        ".*",
        "-*",
        "a b.*",
        "a.b.c.d.e.f.g.h.*",
        "a" * 255 + ".*",
    ],
)
def test_any_other_text_is_an_error(pattern):
    with pytest.raises(ValueError, match=ERROR):
        check_pattern(pattern)


@pytest.mark.parametrize("pattern", ["tenant:*", "tenant:42:*"])
def test_tenants_have_a_tier_instead(pattern):
    with pytest.raises(ValueError, match="because the tier of tenants has their numbers"):
        check_pattern(pattern)


def test_queues_have_limits_instead():
    with pytest.raises(ValueError, match="because each queue has a limit of its own"):
        check_pattern("queue:*")


@pytest.mark.parametrize("key", ["api.stripe.com", "", 5, None])
def test_other_keys_are_no_patterns(key):
    assert not is_pattern(key)
