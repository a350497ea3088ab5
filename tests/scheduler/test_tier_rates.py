"""The rate and the throttle of a tenant: of its tier, of its record, or of an override."""

from __future__ import annotations

from dataclasses import replace

import pytest

from celery_fairness.config.limit_spec import Limit
from celery_fairness.config.rates import Rate
from celery_fairness.config.tiers import Tier
from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Rules, Verdict
from tests.scheduler.shop import RULES
from tests.support.tables import findings

SECOND, HOUR = 1_000, 3_600_000
TWO = {"rate": Rate(2, 10)}
#: The numbers of a record and of an override, as they are written.
WINDOW = ((2, 10 * SECOND),)


@pytest.fixture
def shop(make_shop):
    """A worker whose clock may go on by twenty seconds in a call: a third of its lease."""
    return make_shop(rules=replace(RULES, lease_ms=60 * SECOND))


@pytest.fixture
def rated(shop):
    """A shop whose tenants may start two tasks in ten seconds, and run any number at once."""
    shop.tiers(Tier("free", None, **TWO), Tier("pro", None))
    return shop


def started(shop, **claim):
    """Return how many tasks a claim starts."""
    return len(shop.claim(**claim)[0])


def test_each_tenant_may_start_as_many_tasks_in_any_window(rated):
    for tenant in ("a", "b"):
        rated.put(tenant, times=4, tier="free")
    assert sorted(rated.claim()[0]) == [1, 2, 5, 6]
    rated.end()
    rated.at(10 * SECOND)
    assert started(rated) == 0
    # Two starts may be up to one ms nearer than their whole milliseconds show.
    rated.at(10 * SECOND + 1)
    assert sorted(rated.claim()[0]) == [3, 4, 7, 8]


def test_a_throttle_spaces_the_starts_of_a_tenant(shop):
    shop.tiers(Tier("free", None, throttle=Rate(2, 10)))
    shop.put("a", times=3, tier="free")
    assert shop.claim()[0] == [1]
    assert started(shop) == 0
    shop.at(5 * SECOND)
    assert shop.claim()[0] == [2]
    shop.at(9 * SECOND)
    assert started(shop) == 0


def test_a_worker_sleeps_until_the_window_opens_and_no_other_call_wakes_it(rated):
    rated.put("a", times=3, tier="free")
    rated.claim()
    rated.end()
    rated.claim()
    rated.at(9_400)
    rated.hear()
    assert rated.claim() == ([], 601)
    rated.at(10_001)
    assert rated.claim()[0] == [3]


def test_a_tenant_at_its_rate_hides_no_other_tenant(rated):
    rated.put("a", times=5, tier="free")
    rated.put("b", tier="pro")
    assert sorted(rated.claim()[0]) == [1, 2, 6]
    assert rated.claim()[0] == []
    rated.put("b", tier="pro")
    assert rated.claim()[0] == [7]


def test_the_slots_of_a_tier_count_beside_its_rate(shop):
    shop.tiers(Tier("free", 1, **TWO))
    shop.put("a", times=4, tier="free")
    assert shop.claim()[0] == [1]
    rated = shop
    rated.at(3 * SECOND)
    rated.end()
    assert rated.claim()[0] == [2]
    rated.at(6 * SECOND)
    rated.end()
    assert rated.claim()[0] == []
    rated.at(10_001)
    assert rated.claim()[0] == [3]
    rated.end()
    assert rated.claim()[0] == []
    rated.at(13_001)
    assert rated.claim()[0] == [4]


def test_the_first_start_of_all_is_given_back_too(rated):
    rated.put("a", times=4, tier="free")
    assert rated.claim(1)[0] == [1]
    rated.end_one(0, Verdict.HEAD, begun=False)
    assert rated.claim()[0] == [1, 2]


def test_an_unbegun_task_gives_its_start_back(rated):
    rated.put("a", times=4, tier="free")
    assert rated.claim()[0] == [1, 2]
    rated.end_one(0, Verdict.HEAD, begun=False)
    assert rated.claim()[0] == [1]
    assert rated.claim()[0] == []
    rated.end_one(0, Verdict.DONE)
    # The body of this one began.
    assert rated.claim()[0] == []


def test_the_start_of_a_task_that_nothing_else_of_its_tenant_follows_is_given_back_too(rated):
    rated.put("a", times=2, tier="free")
    assert rated.claim()[0] == [1, 2]
    rated.end_one(1, Verdict.DONE, begun=False)
    rated.put("a", times=2, tier="free")
    assert rated.claim()[0] == [3]


def test_a_record_has_a_rate_of_its_own(rated):
    rated.tenant("a", "free", rate=((1, 10 * SECOND),))
    rated.tenant("b", "free", rate=None)
    for tenant in ("a", "b"):
        rated.put(tenant, times=4, tier="free")
    assert sorted(rated.claim()[0]) == [1, 5, 6, 7, 8]


def test_an_override_raises_the_rate_for_a_time_and_counts_what_started_before(rated):
    rated.put("a", times=9, tier="free")
    assert rated.claim()[0] == [1, 2]
    rated.override("tenant:a", 3 * SECOND, rate=((3, 10 * SECOND),))
    assert rated.claim()[0] == [3]
    assert rated.claim()[0] == []
    rated.at(3 * SECOND)
    assert rated.claim()[0] == []
    rated.at(10_001)
    # The window has no start now, and the tier's own number holds again.
    assert rated.claim()[0] == [4, 5]


def test_starts_count_while_an_override_takes_the_rate_away(rated):
    rated.put("a", times=9, tier="free")
    rated.override("tenant:a", 3 * SECOND, rate=None)
    assert len(rated.claim(4)[0]) == 4
    rated.at(3 * SECOND)
    assert rated.claim()[0] == []


def test_an_override_gives_a_rate_to_a_tenant_without_one(rated):
    rated.put("b", times=4, tier="pro")
    rated.override("tenant:b", rate=WINDOW)
    assert rated.claim()[0] == [1, 2]
    assert rated.claim()[0] == []
    rated.override("tenant:b")
    assert rated.claim()[0] == [3, 4]


def test_another_tier_opens_a_tenant_at_its_rate(rated):
    rated.put("a", times=4, tier="free")
    assert rated.claim()[0] == [1, 2]
    assert rated.claim()[0] == []
    rated.tenant("a", "pro")
    assert rated.claim()[0] == [3, 4]


def test_a_raised_number_of_the_tier_opens_its_tenants(rated):
    rated.put("a", times=4, tier="free")
    rated.claim()
    assert rated.claim()[0] == []
    rated.tiers(Tier("free", None, rate=Rate(3, 10)))
    assert rated.claim()[0] == [3]


@pytest.mark.parametrize("enforcement", ["observe", "off"])
def test_a_worker_that_enforces_nothing_starts_all_and_counts_the_starts(rated, enforcement):
    rated.put("a", times=4, tier="free")
    assert rated.claim(enforcement=enforcement)[0] == [1, 2, 3, 4]
    rated.put("a", tier="free")
    assert rated.claim()[0] == []
    counts = rated.client.hgetall(f"{rated.prefix}counters")
    assert int(counts["rejected:free"]) == (3 if enforcement == "observe" else 1)


def test_a_paused_tenant_starts_nothing_when_its_window_opens(rated):
    rated.put("a", times=3, tier="free")
    rated.claim()
    rated.claim()
    rated.stop("pause", "tenant:a")
    rated.at(10_001)
    assert rated.claim()[0] == []
    rated.stop("resume", "tenant:a")
    assert rated.claim()[0] == [3]


def test_each_service_has_a_window_of_its_own(rated):
    for service in ("s", "t"):
        rated.put("a", times=3, tier="free", service=service)
    assert sorted(rated.claim()[0]) == [1, 2, 4, 5]


def test_a_limit_of_the_key_of_the_tenant_counts_a_start_once(rated):
    own = Limit("tenant:a", rate=((3, HOUR),), private=True)
    rated.put("a", own, times=4, tier="free")
    assert rated.claim()[0] == [1, 2]
    rated.at(10_001)
    assert rated.claim()[0] == [3]
    rated.at(30_000)
    assert rated.claim()[0] == []


@pytest.mark.parametrize(
    ("tier", "own"), [(Rate(5, 20), ((2, 3_000),)), (Rate(2, 3), ((5, 20_000),))]
)
def test_a_limit_of_the_key_of_the_tenant_counts_each_start_in_both_windows(shop, tier, own):
    shop.tiers(Tier("free", None, rate=tier))
    shop.put("a", Limit("tenant:a", rate=own), times=9, tier="free")
    numbers = []
    for now in (0, 3_001, 6_002, 9_003):
        shop.at(now)
        numbers.append(started(shop))
        shop.end()
    # The window of 3 s is full first, and then that of 20 s.
    assert numbers == [2, 2, 1, 0]


def test_tasks_with_limits_count_at_the_rate_of_their_tenant_too(rated):
    rated.put("a", Limit("x", concurrency=5), times=2, tier="free")
    rated.put("a", times=2, tier="free")
    assert len(rated.claim()[0]) == 2
    assert rated.claim()[0] == []


def test_the_tier_that_a_caller_holds_has_its_rate_until_tiers_are_published(shop):
    shop.rules = replace(shop.rules, default_numbers={"rate": WINDOW})
    shop.put("a", times=4)
    assert shop.claim()[0] == [1, 2]


def test_a_system_task_has_no_rate(rated):
    rated.put("", times=4)
    assert len(rated.claim()[0]) == 4


def test_an_event_names_the_rate_that_rejects_and_the_start_that_follows(rated):
    rated.put("a", times=3, tier="free")
    rated.claim()
    (fields,) = [fields for kind, fields in rated.events() if kind == "rate_limit.exceeded"]
    shown = {name: fields[name] for name in ("key", "strategy", "limit", "current")}
    assert shown == {"key": "tenant:a", "strategy": "rate", "limit": "2", "current": "2"}
    rated.at(10_001)
    rated.claim()
    assert [kind for kind, _ in rated.events()] == ["rate_limit.released"]
    counts = rated.client.hgetall(f"{rated.prefix}counters")
    assert counts["rejections rate tenant:a"] == "1"


def test_a_window_of_a_month_takes_no_more_memory_for_a_thousand_million(make_shop):
    """A text has at most 102 entries, however many starts an entry counts."""
    shop = make_shop(rules=replace(RULES, lease_ms=86_400 * SECOND))
    shop.tiers(Tier("free", None, rate=Rate(1_000_000_000, 30 * 86_400)))
    for _ in range(300):
        shop.now += 86_400_000 // 10
        shop.put("a", times=4, tier="free")
        assert started(shop) == 4
        shop.end()
    assert shop.client.memory_usage(f"{shop.prefix}window:tenant:a") < 3_000


def test_the_tables_agree_while_a_tenant_waits_for_its_window(rated):
    rated.put("a", times=3, tier="free")
    rated.claim()
    rated.claim()
    rated.check()
    rated.client.zrem(f"{rated.prefix}ends", " tenant:a")
    found = findings(rated.client, rated.prefix, rated.rules, rated.now, repair=True)
    assert [name for name, _, _ in found] == ["tenant_left_at_limit"]
    rated.at(10_001)
    assert rated.claim()[0] == [3]


class TestCost:
    """Users without a rate of a tier pay nothing."""

    @staticmethod
    def commands_of(shop, act):
        """Return the names of the commands that a call runs in Redis."""
        before = shop.client.info("commandstats")
        act()
        after = shop.client.info("commandstats")
        names = {name for name in after if "fcall" not in name and "info" not in name}
        return {
            name.removeprefix("cmdstat_"): calls_made
            for name in names
            if (calls_made := after[name]["calls"] - before.get(name, {"calls": 0})["calls"])
        }

    def test_a_tier_with_a_rate_costs_tenants_of_other_tiers_no_command(self, shop):
        def run(tiers):
            shop.lose()
            shop.tiers(*tiers)
            shop.put("b", times=4, tier="pro")
            shop.claim(1)
            one = self.commands_of(shop, lambda: shop.claim(1))
            return one, self.commands_of(shop, shop.end)

        plain = run((Tier("free", None), Tier("pro", None)))
        assert run((Tier("free", None, **TWO), Tier("pro", None))) == plain


def test_the_arguments_of_a_worker_name_the_numbers_of_its_default_tier():
    rules = Rules(default_limit=3, default_numbers={"rate": WINDOW})
    assert calls.rules_args(rules)[3] == "C3;R2/10000"
