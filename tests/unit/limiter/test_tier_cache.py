"""The tier of a tenant: a chain of answers behind a cache, and what Redis away costs."""

from __future__ import annotations

import logging
import sys
from types import SimpleNamespace

import pytest

from celery_fairness.config.settings import build_settings
from celery_fairness.config.tenants import INVALID, NONE
from celery_fairness.config.tiers import DEFAULT_TIERS, Tier
from celery_fairness.errors import SettingsError
from celery_fairness.limiter.tier_cache import (
    AWAY_SECONDS,
    CACHE_TENANTS,
    FAILURE_SECONDS,
    LOOK_SECONDS,
    TierCache,
    load_resolver,
)
from celery_fairness.limiter.unresolved_tenants import TENANTS_AT_MOST
from tests.support.answering_limiter import AnsweringLimiter


def asked(limiter):
    """What a tier cache asked the limiter, in order."""
    return [call.name for call in limiter.calls if not call.name.startswith("publish_")]


class Resolver:
    """Answers from a dict and counts how often it was asked."""

    def __init__(self, **tiers):
        self.tiers = tiers
        self.asked = []

    def __call__(self, tenant):
        self.asked.append(tenant)
        answer = self.tiers.get(tenant)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def limiter():
    return AnsweringLimiter()


@pytest.fixture
def make(limiter, notices, clock):
    def make_tier_cache(**settings):
        return TierCache(build_settings(settings), lambda: limiter, notices, clock)

    return make_tier_cache


def test_the_chain_is_published_then_resolver_then_default(make, limiter):
    resolver = Resolver(a="pro", b="pro")
    limiter.publish_tenant("a", "enterprise")
    tier_cache = make(tier_resolver=resolver)
    tier_cache.look()
    assert tier_cache.tier_of("a", "pro_plus") == "enterprise"
    assert tier_cache.tier_of("b", "pro_plus") == "pro"
    # A resolver that knows nothing has said what a stranger is, whatever the message says.
    assert tier_cache.tier_of("c", "pro_plus") == "free"
    assert tier_cache.tier_of("d") == "free"
    # The administrator's word makes the user's resolver superfluous.
    assert resolver.asked == ["b", "c", "d"]


def reports(limiter):
    calls = [call.args for call in limiter.calls if call.name == "report_unresolved"]
    return [(failed, {name: row[:2] for name, row in rows.items()}) for failed, rows in calls]


def test_a_failure_of_the_resolver_is_reported_at_once_and_later_ones_once_a_second(
    make, limiter, clock
):
    failing = {name: ConnectionError("secret") for name in ("a", "b", "c")}
    tier_cache = make(tier_resolver=Resolver(**failing, odd="prro"))
    assert tier_cache.tier_of("a") == "free"
    assert reports(limiter) == [(1, {"a": (1, "ConnectionError")})]
    for tenant in ("b", "b", "c", "odd"):
        tier_cache.look()
        assert tier_cache.tier_of(tenant) == "free"
    # The answer to the report had the version, so no look was needed either.
    assert asked(limiter) == ["report_unresolved"]
    clock.advance(LOOK_SECONDS)
    tier_cache.look()
    tier_cache.look()
    named = {"b": (1, "ConnectionError"), "c": (1, "ConnectionError"), "odd": (1, "UnknownTier")}
    assert reports(limiter)[1:] == [(3, named)]
    assert asked(limiter) == ["report_unresolved"] * 2
    clock.advance(LOOK_SECONDS)
    tier_cache.look()
    assert asked(limiter)[2:] == ["config_version"]


def test_the_answer_to_a_report_has_the_config_version(make, limiter):
    tier_cache = make(tier_resolver=Resolver(a=ValueError()))
    limiter.publish_tenant("a", "pro")
    assert tier_cache.tier_of("a") == "free"
    # The report brought the version, so the published tier is looked up.
    assert tier_cache.tier_of("a") == "pro"


def test_many_failures_are_counted_and_few_tenants_named(make, limiter, clock):
    def fail(tenant):
        raise OSError(tenant)

    tier_cache = make(tier_resolver=fail)
    for number in range(500):
        tier_cache.tier_of(f"t{number}")
    clock.advance(LOOK_SECONDS)
    tier_cache.look()
    _, (failed, tenants) = reports(limiter)
    assert (failed, len(tenants)) == (499, TENANTS_AT_MOST)


def test_a_report_that_fails_disturbs_nobody_and_is_sent_later(make, limiter, clock):
    tier_cache = make(tier_resolver=Resolver(a=ValueError()))
    limiter.away = True
    assert tier_cache.tier_of("a") == "free"
    for _ in range(3):
        clock.advance(FAILURE_SECONDS)
        assert tier_cache.tier_of("a") == "free"
    assert len(reports(limiter)) == 1
    limiter.away = False
    clock.advance(AWAY_SECONDS)
    tier_cache.look()
    assert reports(limiter)[1:] == [(4, {"a": (4, "ValueError")})]


def test_a_late_report_has_the_age_of_the_last_failure(make, limiter, clock):
    tier_cache = make(tier_resolver=Resolver(a=ValueError(), b=KeyError()))
    tier_cache.tier_of("a")
    tier_cache.tier_of("b")
    clock.advance(3600)
    tier_cache.close()
    (_, last) = [call.args for call in limiter.calls if call.name == "report_unresolved"]
    assert last == (1, {"b": (1, "KeyError", 3_600_000)})


def test_a_report_without_an_answer_is_the_only_wait_of_a_put(make, limiter, clock):
    tier_cache = make(tier_resolver=Resolver(a=ValueError()))
    tier_cache.set_version(1)
    limiter.publish_tenant("b", "pro")
    tier_cache._note_unresolved("a", "ValueError")
    limiter.calls.clear()
    clock.advance(LOOK_SECONDS)
    limiter.away = True
    tier_cache._note_unresolved("a", "ValueError")
    tier_cache.look()
    assert tier_cache.tier_of("b") == "free"
    assert asked(limiter) == ["report_unresolved"]


def test_threads_do_not_report_beside_one_that_waits(make, limiter, monkeypatch):
    tier_cache = make(tier_resolver=Resolver())
    sent = []

    def report_unresolved(failed, tenants):
        sent.append(failed)
        if len(sent) == 1:
            # Another thread notes a failure while this one waits.
            tier_cache._note_unresolved("b", "OSError")
        return 0

    monkeypatch.setattr(limiter, "report_unresolved", report_unresolved)
    tier_cache._note_unresolved("a", "OSError")
    assert sent == [1]


def test_failures_that_are_left_are_reported_when_the_app_is_closed(make, limiter):
    tier_cache = make(tier_resolver=Resolver(a=ValueError(), b=ValueError()))
    tier_cache.tier_of("a")
    tier_cache.tier_of("b")
    tier_cache.close()
    tier_cache.close()
    assert [tenants for _, tenants in reports(limiter)] == [
        {"a": (1, "ValueError")},
        {"b": (1, "ValueError")},
    ]


def test_an_operator_who_looks_counts_no_failure(make, limiter):
    tier_cache = make(tier_resolver=Resolver(a=ValueError("away"), odd="prro"))
    assert "ValueError('away')" in tier_cache.answer("a").unknown
    # Doctor prints it, and the text of an error may have a secret.
    assert tier_cache.try_resolver("a") == "ValueError"
    assert tier_cache.try_resolver("odd").startswith("it returned the tier 'prro', expected one of")
    assert tier_cache.try_resolver("new") == ""
    assert reports(limiter) == []


def test_without_a_resolver_the_hint_counts(make):
    assert make().tier_of("a", "pro") == "pro"
    assert make(default_tier="pro").tier_of("a") == "pro"


@pytest.mark.parametrize("tenant", [NONE, INVALID])
def test_a_reserved_tenant_is_of_the_default_tier_and_nobody_is_asked(make, limiter, tenant):
    resolver = Resolver(_none="enterprise", _invalid="enterprise")
    assert make(tier_resolver=resolver).tier_of(tenant, "enterprise") == "free"
    assert resolver.asked == asked(limiter) == []


@pytest.mark.parametrize("answer", ["gold", "PRO", " pro", "", None])
def test_an_unknown_tier_is_the_default_tier(make, answer):
    assert make(tier_resolver=Resolver(a=answer)).tier_of("a") == "free"
    assert make().tier_of("a", answer) == "free"


def test_an_answer_is_believed_for_the_cache_time(make, clock):
    resolver = Resolver(a="pro")
    tier_cache = make(tier_resolver=resolver, tier_cache_seconds=60)
    assert tier_cache.tier_of("a") == "pro"
    resolver.tiers["a"] = "enterprise"
    clock.advance(59.999)
    assert tier_cache.tier_of("a") == "pro"
    clock.advance(0.001)
    assert tier_cache.tier_of("a") == "enterprise"
    assert len(resolver.asked) == 2


def test_no_answer_is_remembered_too(make):
    resolver = Resolver()
    tier_cache = make(tier_resolver=resolver)
    assert [tier_cache.tier_of("a", hint) for hint in ("pro", None)] == ["free"] * 2
    assert len(resolver.asked) == 1


def test_a_cache_time_of_zero_asks_every_time(make):
    resolver = Resolver(a="pro")
    tier_cache = make(tier_resolver=resolver, tier_cache_seconds=0)
    for _ in range(3):
        assert tier_cache.tier_of("a") == "pro"
    assert len(resolver.asked) == 3


def test_news_empty_the_cache(make, limiter, clock):
    tier_cache = make(tier_resolver=Resolver(a="pro"))
    tier_cache.look()
    assert tier_cache.tier_of("a") == "pro"
    limiter.publish_tenant("a", "enterprise")
    clock.advance(LOOK_SECONDS)
    tier_cache.look()
    assert tier_cache.tier_of("a") == "enterprise"


def test_no_news_leave_the_cache(make, clock):
    resolver = Resolver(a="pro")
    tier_cache = make(tier_resolver=resolver)
    for _ in range(5):
        tier_cache.look()
        tier_cache.tier_of("a")
        clock.advance(LOOK_SECONDS)
    assert len(resolver.asked) == 1


def test_news_that_a_limiter_answered_with_count_at_once(make, limiter):
    tier_cache = make(tier_resolver=Resolver(a="pro"))
    assert tier_cache.tier_of("a") == "pro"
    limiter.publish_tenant("a", "enterprise")
    tier_cache.set_version(1)
    assert tier_cache.tier_of("a") == "enterprise"


def test_a_redis_that_came_back_empty_is_news_too(make, limiter):
    limiter.publish_tenant("a", "enterprise")
    tier_cache = make()
    tier_cache.set_version(1)
    assert tier_cache.tier_of("a") == "enterprise"
    limiter.publish_tenant("a", None)
    tier_cache.set_version(0)
    assert tier_cache.tier_of("a") == "free"


def test_published_tiers_are_in_force(make, limiter):
    limiter.publish_tiers([Tier("free", 1), Tier("gold", 9, 2.0, "priority")], "database")
    tier_cache = make(tier_resolver=Resolver(a="gold", b="pro"))
    assert tier_cache.tiers() == DEFAULT_TIERS
    tier_cache.set_version(1)
    assert set(tier_cache.tiers()) == {"free", "gold"}
    assert tier_cache.tier_of("a") == "gold"
    assert tier_cache.tier_of("b") == "free"


def test_published_tiers_are_read_once(make, limiter):
    limiter.publish_tiers([Tier("free", 1)], "database")
    tier_cache = make()
    for _ in range(10):
        tier_cache.set_version(1)
        tier_cache.tiers()
    assert asked(limiter) == ["published_tiers"]


def test_a_producer_that_only_looks_sees_published_tiers(make, limiter, clock):
    limiter.publish_tiers([Tier("free", 1), Tier("gold", 9, 2.0, "priority")], "database")
    limiter.publish_tenant("a", "gold")
    tier_cache = make()
    for _ in range(3):
        tier_cache.look()
        assert tier_cache.tier_of("a") == "gold"
        clock.advance(LOOK_SECONDS)


def test_a_producer_looks_at_most_once_a_second(make, limiter, clock):
    tier_cache = make()
    for _ in range(100):
        tier_cache.look()
        clock.advance(0.02)
    assert asked(limiter) == ["config_version", "config_version"]


def test_a_redis_that_is_away_costs_one_wait_and_is_then_left_alone(make, limiter, clock):
    limiter.away = True
    tier_cache = make(tier_resolver=Resolver(a="pro"))
    for number in range(200):
        tier_cache.look()
        assert tier_cache.tier_of("a") == "pro"
        assert tier_cache.tier_of(f"t{number}") == "free"
        clock.advance(AWAY_SECONDS / 201)
    assert asked(limiter) == ["config_version"]
    clock.advance(AWAY_SECONDS / 100)
    limiter.away = False
    tier_cache.look()
    assert asked(limiter) == ["config_version", "config_version"]


def test_a_redis_that_goes_away_costs_one_wait_for_all_tenants(make, limiter, clock):
    limiter.publish_tenant("a", "pro")
    tier_cache = make()
    tier_cache.look()
    assert tier_cache.tier_of("a") == "pro"
    limiter.calls.clear()
    limiter.away = True
    clock.advance(LOOK_SECONDS)
    for number in range(200):
        tier_cache.look()
        tier_cache.tier_of(f"t{number}")
    assert asked(limiter) == ["config_version"]


def test_a_published_tier_counts_again_as_soon_as_redis_is_back(make, limiter, clock):
    limiter.publish_tenant("a", "enterprise")
    tier_cache = make()
    tier_cache.look()
    limiter.away = True
    assert tier_cache.tier_of("a") == "free"
    limiter.away = False
    clock.advance(AWAY_SECONDS)
    assert tier_cache.tier_of("a") == "enterprise"


def test_a_resolver_runs_no_more_often_while_redis_is_away(make, limiter, clock):
    limiter.publish_tenant("a", "enterprise")
    resolver = Resolver(a="pro")
    tier_cache = make(tier_resolver=resolver)
    tier_cache.look()
    limiter.away = True
    for _ in range(3):
        assert tier_cache.tier_of("a") == "pro"
        clock.advance(AWAY_SECONDS)
    assert len(resolver.asked) == 1


@pytest.mark.parametrize(
    "answer", [RuntimeError("down"), KeyError("a"), TypeError("x"), OSError(5, "io")]
)
def test_a_resolver_that_fails_means_the_default_tier_and_a_line_in_the_log(make, caplog, answer):
    tier_cache = make(tier_resolver=Resolver(a=answer))
    assert tier_cache.tier_of("a") == "free"
    assert tier_cache.tier_of("a", "pro") == "free"
    (line,) = caplog.messages
    assert line == f"the tier resolver failed, the default tier is used: {answer!r}"


def test_a_tier_that_is_not_in_the_table_means_the_default_tier_and_a_line_in_the_log(make, caplog):
    tier_cache = make(tier_resolver=Resolver(petra="prro", ada="pro", eve=None))
    assert [tier_cache.tier_of(each) for each in ("petra", "petra", "ada", "eve")] == [
        "free",
        "free",
        "pro",
        "free",
    ]
    (line,) = caplog.messages
    assert line == (
        "the tier of tenant 'petra': expected one of enterprise, free, pro, pro_plus, got: 'prro', "
        "did you mean 'pro'?; the default tier free is used"
    )


@pytest.mark.parametrize("answer", [3, True, ["pro"], b"pro", {"tier": "pro"}])
def test_a_resolver_that_answers_nonsense_has_failed(make, caplog, answer):
    assert make(tier_resolver=lambda tenant: answer).tier_of("a") == "free"
    assert f"expected a tier's name or None, got: {answer!r}" in caplog.text


def test_a_failed_resolver_is_left_alone_for_a_second(make, clock):
    resolver = Resolver(a=RuntimeError("down"))
    tier_cache = make(tier_resolver=resolver)
    for _ in range(50):
        tier_cache.tier_of("a")
    assert len(resolver.asked) == 1
    resolver.tiers["a"] = "pro"
    clock.advance(FAILURE_SECONDS)
    assert tier_cache.tier_of("a") == "pro"


def test_the_cache_has_a_bound(make):
    resolver = Resolver()
    tier_cache = make(tier_resolver=resolver)
    for number in range(CACHE_TENANTS + 50):
        tier_cache.tier_of(f"t{number}")
    assert len(tier_cache._known) == CACHE_TENANTS
    before = len(resolver.asked)
    tier_cache.tier_of(f"t{CACHE_TENANTS + 49}")
    assert len(resolver.asked) == before
    tier_cache.tier_of("t0")
    assert len(resolver.asked) == before + 1


@pytest.fixture
def module(monkeypatch):
    made = SimpleNamespace(tier_of=Resolver(a="pro"), number=3)
    monkeypatch.setitem(sys.modules, "shop_plans", made)
    return made


def test_a_resolver_by_name_is_imported_at_first_use(make, module):
    tier_cache = make(tier_resolver="shop_plans:tier_of")
    assert tier_cache.tier_of("a") == "pro"
    assert module.tier_of.asked == ["a"]


def test_a_resolver_may_be_in_the_folder_of_the_process(make, tmp_path, monkeypatch):
    (tmp_path / "plans_of_folder.py").write_text("def tier_of(tenant):\n    return 'pro'\n")
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    assert make(tier_resolver="plans_of_folder:tier_of").tier_of("a") == "pro"
    assert sys.path == before


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("no_such_module_of_ours:tier_of", "expected 'module:name' that can be imported, got: "),
        ("shop_plans:nobody", "expected 'module:name' that can be imported, got: "),
        ("shop_plans:number", "expected a callable, got: 3"),
    ],
)
def test_a_resolver_that_is_not_there_is_named_and_the_producer_goes_on(
    make, module, caplog, path, problem
):
    with pytest.raises(SettingsError, match=problem):
        load_resolver(build_settings({"tier_resolver": path}))
    assert make(tier_resolver=path).tier_of("a") == "free"
    assert problem in caplog.text


def test_what_ends_the_process_is_not_a_failed_resolver(make, caplog):
    caplog.set_level(logging.DEBUG)

    def interrupted(tenant):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(tier_resolver=interrupted).tier_of("a")
    assert caplog.messages == []
