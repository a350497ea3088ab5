from __future__ import annotations

import logging
import threading
from uuid import uuid4

import pytest
from django.db import connection, transaction
from django_celery_fairness import publishing
from django_celery_fairness.models import TenantTier, Tier, UnpublishedChange

from celery_fairness import Fairness
from celery_fairness.limiter.types import Lease, SlotRequest
from tests.django.suite.other_process import elsewhere
from tests.django.suite.recording import Publications
from tests.support.parts import parts_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("four_tiers")]


@pytest.fixture
def published(fairness, monkeypatch) -> Publications:
    return Publications(fairness, monkeypatch)


def limit(fairness: Fairness, tenant: str) -> int | None:
    """The limit that an acquire would meet now."""
    return fairness.limits.inspect(f"tenant:{tenant}").limit


def pending() -> list[tuple[str, str]]:
    return list(UnpublishedChange.objects.order_by("pk").values_list("kind", "name"))


def test_a_tiers_new_number_is_in_force_when_save_returns(fairness):
    TenantTier.objects.create(tenant="acme", tier=Tier.objects.get(name="pro"))
    assert limit(fairness, "acme") == 3
    tier = Tier.objects.get(name="pro")
    tier.concurrency = 8
    tier.save()
    assert limit(fairness, "acme") == 8
    assert pending() == []


@pytest.mark.parametrize("number", [None, 0, 1_000_000])
def test_unlimited_and_paused_are_published_as_they_are(fairness, number):
    TenantTier.objects.create(tenant="acme", tier=Tier.objects.get(name="pro"))
    Tier.objects.filter(name="pro").update(concurrency=number)
    assert limit(fairness, "acme") == number


def test_a_tenants_tier_and_own_number_are_in_force_when_save_returns(fairness):
    row = TenantTier.objects.create(tenant="acme", tier=Tier.objects.get(name="pro"))
    assert limit(fairness, "acme") == 3
    row.tier = Tier.objects.get(name="enterprise")
    row.save()
    assert limit(fairness, "acme") == 5
    row.concurrency = 2
    row.save()
    assert limit(fairness, "acme") == 2
    row.concurrency = None
    row.save()
    assert limit(fairness, "acme") == 5
    row.delete()
    assert limit(fairness, "acme") == 1


def test_a_worker_that_remembers_the_tier_before_is_checked_by_the_new_one(fairness):
    """Its first question after the commit already: what it remembers does not count."""

    def first_acquire() -> tuple[str, int | None]:
        lease = Lease(uuid4().hex, "tenant:acme")
        answer = parts_of(fairness).limiter.acquire(SlotRequest(lease, "acme", tier="pro"))
        return answer.tier, answer.limit

    row = TenantTier.objects.create(tenant="acme", tier=Tier.objects.get(name="pro"))
    assert first_acquire() == ("pro", 3)
    row.tier = Tier.objects.get(name="enterprise")
    row.save()
    assert first_acquire() == ("enterprise", 5)
    row.concurrency = 4
    row.save()
    assert first_acquire() == ("enterprise", 4)
    row.delete()
    assert first_acquire() == ("free", 1)


def test_nothing_is_published_before_the_commit_and_all_of_it_once(published):
    with transaction.atomic():
        for name, number in (("pro", 4), ("enterprise", 9), ("pro", 6)):
            row = Tier.objects.get(name=name)
            row.concurrency = number
            row.save()
        TenantTier.objects.create(tenant="a", tier=row)
        TenantTier.objects.create(tenant="b", tier=row)
        assert published.nothing
    assert published.tables == [{"free": 1, "pro": 6, "pro_plus": 3, "enterprise": 9}]
    assert published.tenants == [("a", "pro"), ("b", "pro")]
    assert pending() == []


def test_a_transaction_that_is_rolled_back_publishes_nothing(published):
    with transaction.atomic():
        Tier.objects.filter(name="pro").update(concurrency=9)
        TenantTier.objects.create(tenant="a", tier=Tier.objects.get(name="pro"))
        transaction.set_rollback(True)
    assert published.nothing
    assert pending() == []


def test_a_savepoint_that_is_rolled_back_does_not_take_the_others_along(published):
    pro = Tier.objects.get(name="pro")
    with transaction.atomic():
        with transaction.atomic():
            TenantTier.objects.create(tenant="inner", tier=pro)
            transaction.set_rollback(True)
        TenantTier.objects.create(tenant="outer", tier=pro)
    assert published.tenants == [("outer", "pro")]
    with transaction.atomic():
        TenantTier.objects.create(tenant="first", tier=pro)
        with transaction.atomic():
            TenantTier.objects.create(tenant="second", tier=pro)
            transaction.set_rollback(True)
    assert published.tenants == [("outer", "pro"), ("first", "pro")]
    assert pending() == []


def test_bulk_operations_are_published(fairness, published):
    pro, free = Tier.objects.get(name="pro"), Tier.objects.get(name="free")
    Tier.objects.bulk_create([Tier(name="gold", concurrency=7)])
    assert published.tables[-1]["gold"] == 7
    Tier.objects.filter(name="gold").update(concurrency=8)
    assert published.tables[-1]["gold"] == 8
    gold = Tier.objects.get(name="gold")
    gold.concurrency = 9
    Tier.objects.bulk_update([gold], ["concurrency"])
    assert published.tables[-1]["gold"] == 9
    Tier.objects.filter(name="gold").delete()
    assert "gold" not in published.tables[-1]

    TenantTier.objects.bulk_create([TenantTier(tenant=t, tier=pro) for t in "ab"])
    assert [limit(fairness, tenant) for tenant in "ab"] == [3, 3]
    TenantTier.objects.update(concurrency=2)
    assert [limit(fairness, tenant) for tenant in "ab"] == [2, 2]
    rows = list(TenantTier.objects.all())
    for row in rows:
        row.tier, row.concurrency = free, None
    TenantTier.objects.bulk_update(rows, ["tier", "concurrency"])
    assert [limit(fairness, tenant) for tenant in "ab"] == [1, 1]
    TenantTier.objects.update(concurrency=6)
    TenantTier.objects.all().delete()
    assert [limit(fairness, tenant) for tenant in "ab"] == [1, 1]
    assert pending() == []


def test_more_tenants_than_one_query_reads_are_published(fairness, monkeypatch):
    monkeypatch.setattr(publishing, "CHUNK", 2)
    pro = Tier.objects.get(name="pro")
    tenants = list("abcde")
    TenantTier.objects.bulk_create([TenantTier(tenant=t, tier=pro, concurrency=7) for t in tenants])
    assert [limit(fairness, tenant) for tenant in tenants] == [7] * 5
    assert pending() == []


def test_a_renamed_tier_takes_its_tenants_along(fairness):
    gold = Tier.objects.create(name="gold", concurrency=7)
    TenantTier.objects.create(tenant="acme", tier=gold)
    gold.name = "platinum"
    gold.save()
    assert limit(fairness, "acme") == 7
    Tier.objects.filter(name="platinum").update(name="silver")
    assert limit(fairness, "acme") == 7


def test_a_renamed_tenant_leaves_nothing_under_its_old_name(fairness):
    row = TenantTier.objects.create(tenant="old", tier=Tier.objects.get(name="pro"), concurrency=9)
    row.tenant = "new"
    row.save()
    assert (limit(fairness, "old"), limit(fairness, "new")) == (1, 9)
    TenantTier.objects.filter(tenant="new").update(tenant="newest")
    assert (limit(fairness, "new"), limit(fairness, "newest")) == (1, 9)


def test_who_uses_raw_sql_says_so(fairness):
    TenantTier.objects.create(tenant="acme", tier=Tier.objects.get(name="pro"))
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("UPDATE django_celery_fairness_tier SET concurrency = 6")
            cursor.execute("UPDATE django_celery_fairness_tenanttier SET concurrency = 4")
        publishing.publish_on_commit(tiers=True, tenants=["acme"])
    assert limit(fairness, "acme") == 4
    assert limit(fairness, "nobody") == 6


def test_saving_without_fairness_saves(unwired, caplog):
    Tier.objects.filter(name="pro").update(concurrency=8)
    assert Tier.objects.get(name="pro").concurrency == 8
    assert pending() == [("tiers", "")]
    assert "fairness = Fairness(app)" in caplog.text
    assert "Fairness(app)" in UnpublishedChange.objects.get().error


def test_redis_away_does_not_break_the_save_and_says_the_next_step(redis_away, caplog):
    with caplog.at_level(logging.WARNING, "django_celery_fairness"):
        Tier.objects.filter(name="pro").update(concurrency=8)
    assert Tier.objects.get(name="pro").concurrency == 8
    assert "does not answer" in caplog.text
    assert "manage.py publish'" in caplog.text
    assert pending() == [("tiers", "")]
    assert "does not answer" in UnpublishedChange.objects.get().error
    assert publishing.unpublished().count() == 1


def test_redis_away_is_asked_once_for_a_transaction(redis_away, published):
    """Each question may take the connection's timeout: one is bearable, one for each row is not."""
    with transaction.atomic():
        for number in range(5):
            Tier.objects.filter(name="pro").update(concurrency=number)
    assert len(published.tables) == 1
    assert pending() == [("tiers", "")] * 5


def test_what_redis_missed_goes_with_the_next_change(fairness, redis_away):
    pro = Tier.objects.get(name="pro")
    Tier.objects.filter(name="pro").update(concurrency=8)
    TenantTier.objects.create(tenant="acme", tier=pro, concurrency=6)
    redis_away.restart()
    TenantTier.objects.create(tenant="other", tier=pro)
    assert limit(fairness, "other") == 8
    assert limit(fairness, "acme") == 6
    assert pending() == []
    assert not publishing.unpublished().exists()


def test_a_deletion_that_redis_missed_is_not_lost(fairness, redis_server):
    pro = Tier.objects.get(name="pro")
    TenantTier.objects.create(tenant="acme", tier=pro, concurrency=6)
    redis_server.pause()
    TenantTier.objects.all().delete()
    redis_server.resume()
    assert limit(fairness, "acme") == 6
    assert pending() == [("tenant", "acme")]
    assert publishing.publish_everything().tenants == 1
    assert limit(fairness, "acme") == 1
    assert pending() == []


def test_publishing_everything_heals_a_redis_that_forgot(fairness, redis_server):
    pro = Tier.objects.get(name="pro")
    Tier.objects.filter(name="free").update(concurrency=2)
    TenantTier.objects.create(tenant="acme", tier=pro, concurrency=6)
    TenantTier.objects.create(tenant="plain", tier=pro)
    redis_server.kill()
    redis_server.restart()
    assert (limit(fairness, "nobody"), limit(fairness, "acme")) == (1, 3)
    assert publishing.publish_everything() == publishing.Published(tiers=4, tenants=1, by_tier=1)
    assert (limit(fairness, "nobody"), limit(fairness, "acme")) == (2, 6)


def test_a_change_is_reported_as_unpublished_only_once_it_is_late_or_failed():
    change = UnpublishedChange.objects.create(kind="tenant", name="acme")
    assert not publishing.unpublished().exists()
    late = change.made_at - publishing.ON_ITS_WAY
    UnpublishedChange.objects.update(made_at=late)
    assert publishing.unpublished().exists()


def test_of_two_that_publish_the_table_the_newest_stays(fairness, published):
    def interfere() -> None:
        if threading.current_thread() is threading.main_thread():
            published.before_table = lambda: None
            elsewhere(lambda: Tier.objects.filter(name="free").update(concurrency=5))
            assert limit(fairness, "nobody") == 5

    published.before_table = interfere
    Tier.objects.filter(name="free").update(concurrency=3)
    assert [table["free"] for table in published.tables] == [5, 3, 5]
    assert limit(fairness, "nobody") == 5


def test_of_two_that_publish_one_tenant_the_newest_number_stays(fairness, published):
    """The timeline of the module's docstring, with B in a thread of its own.

    A commits 3 and has read 3; before it writes, B commits 5 and publishes it whole. A's write
    is then the older one, and A must notice.
    """
    row = TenantTier.objects.create(tenant="acme", tier=Tier.objects.get(name="pro"), concurrency=1)
    published.tenants.clear()

    def interfere(_tenant: str) -> None:
        if threading.current_thread() is threading.main_thread():
            published.before_tenant = lambda _tenant: None
            elsewhere(lambda: TenantTier.objects.filter(pk=row.pk).update(concurrency=5))
            assert limit(fairness, "acme") == 5

    published.before_tenant = interfere
    row.concurrency = 3
    row.save()
    assert len(published.tenants) == 3
    assert limit(fairness, "acme") == 5


def test_a_publication_that_never_agrees_gives_up_and_stays_pending(fairness, published, caplog):
    row = TenantTier.objects.create(tenant="acme", tier=Tier.objects.get(name="pro"), concurrency=1)
    numbers = iter(range(2, 100))

    def interfere(_tenant: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE django_celery_fairness_tenanttier SET concurrency = %s", [next(numbers)]
            )

    published.before_tenant = interfere
    row.save()
    assert pending() == [("tenant", "acme")]
    assert "stay pending" in caplog.text
