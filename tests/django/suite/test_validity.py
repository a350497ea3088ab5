"""A tenant's row that applies only for a time.

Redis has a clock of its own, which these tests do not set. They set Django's clock a day before or
behind it. So the end of a row is over for one of the two clocks alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta

import pytest
from django.core.management import call_command
from django.utils import timezone
from django_celery_fairness import publishing
from django_celery_fairness.models import TenantTier, Tier, UnpublishedChange
from django_celery_fairness.resolver import tier_of
from redis import Redis

from celery_fairness import Fairness
from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Waiting
from tests.support.library import call

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("four_tiers")]

#: Redis gets whole milliseconds.
NOW = timezone.now().replace(microsecond=0)
DAY = timedelta(days=1)
MOMENT, SECOND = timedelta(microseconds=1), timedelta(seconds=1)


@pytest.fixture
def at(monkeypatch) -> Callable[[datetime], None]:
    """Set the clock of Django."""

    def at(moment: datetime) -> None:
        monkeypatch.setattr(timezone, "now", lambda: moment)

    return at


@pytest.fixture
def fairness(wire: Callable[..., Fairness], redis_url: str) -> Fairness:
    return wire(f"fair{redis_url}")


@pytest.fixture
def client(redis_server, redis_url: str) -> Redis:
    with redis_server.client(decode_responses=True) as made:
        yield made


def make(**fields) -> TenantTier:
    tier = Tier.objects.get(name=fields.pop("tier", "enterprise"))
    return TenantTier.objects.create(**{"tenant": "acme", "tier": tier, **fields})


def limit(fairness: Fairness) -> int | None:
    return fairness.limits.inspect("tenant:acme").limit


def record(client: Redis) -> dict[str, str]:
    return client.hgetall("{fairness}:tenant:acme")


@pytest.mark.parametrize(
    ("begin", "end", "applies"),
    [
        (None, None, True),
        (NOW, None, True),
        (NOW + MOMENT, None, False),
        (None, NOW, False),
        (None, NOW + MOMENT, True),
        (NOW - DAY, NOW + DAY, True),
        (NOW - 2 * DAY, NOW - DAY, False),
        (NOW + DAY, NOW + 2 * DAY, False),
    ],
)
def test_the_resolver_and_the_queryset_agree_on_the_time(at, begin, end, applies):
    make(valid_from=begin, valid_until=end)
    at(NOW)
    assert TenantTier.objects.in_force(NOW).exists() is applies
    assert tier_of("acme") == ("enterprise" if applies else None)


def test_a_row_that_has_begun_is_in_force_when_save_returns(fairness, client):
    make(valid_from=NOW - DAY, valid_until=NOW + DAY)
    assert limit(fairness) == 5
    ends_ms = str(int((NOW + DAY).timestamp() * 1000))
    assert record(client) == {"tier": "enterprise", "numbers": "", "ends_ms": ends_ms}
    assert client.pexpiretime("{fairness}:tenant:acme") == int(ends_ms) + 121_000


def test_redis_ends_a_row_without_django(fairness, client, at):
    """Django's clock stays before the end, and that of Redis is behind it."""
    now = timezone.now()
    at(now - 2 * DAY)
    row = make(valid_until=now - SECOND, concurrency=9)
    assert tier_of("acme") == "enterprise"
    assert limit(fairness) == 1
    assert fairness.limits.inspect("tenant:acme").in_force.reasons[0].kind == "tier"
    row.valid_until = NOW + DAY
    row.save()
    assert limit(fairness) == 9


def test_a_row_whose_time_is_to_come_or_over_counts_as_no_row(fairness):
    row = make(valid_from=NOW + DAY, concurrency=9)
    assert limit(fairness) == 1
    row.valid_from, row.valid_until = None, NOW - MOMENT
    row.save()
    assert limit(fairness) == 1
    row.valid_until = None
    row.save()
    assert limit(fairness) == 9
    row.delete()
    assert limit(fairness) == 1


def test_the_command_makes_a_row_effective_whose_time_has_begun(fairness, client, at):
    make(valid_from=NOW + DAY, tier="pro")
    assert record(client)["tier"] == "free"
    call_command("publish")
    assert record(client)["tier"] == "free"
    at(NOW + DAY)
    call_command("publish")
    assert record(client) == {"tier": "pro", "numbers": ""}
    # It stays: the resolver is not enough for a task that waits.
    assert client.pttl("{fairness}:tenant:acme") == -1
    assert not UnpublishedChange.objects.exists()


def test_a_second_publication_is_no_news(fairness, client):
    make(valid_until=NOW + DAY)
    before = client.hget("{fairness}:clock", "version")
    publishing.publish_everything()
    assert client.hget("{fairness}:clock", "version") == before


def test_the_command_restores_only_what_applies(fairness, redis_server):
    make(valid_until=NOW + DAY)
    make(tenant="over", valid_until=NOW - DAY, concurrency=4)
    make(tenant="to come", valid_from=NOW + DAY, concurrency=4)
    make(tenant="plain")
    redis_server.kill()
    redis_server.restart()
    done = publishing.publish_everything()
    assert (done.tenants, done.by_tier) == (1, 1)
    assert limit(fairness) == 5


def wait(client: Redis, queue: str, tag: str, tier: str) -> None:
    header = {"v": 1, "tenant": "acme", "tier": tier, "service": "pdf"}
    message = json.dumps({"body": "", "headers": {"id": tag, "fairness": header}})
    args = calls.put_args(Waiting(queue, tag, "acme", tier=tier, message=message))
    call(client, calls.PUT, "{fairness}:", args)


def test_waiting_tasks_follow_the_beginning_and_the_end(fairness, client, at):
    """Their limit follows by itself, their queue with the command."""
    make(valid_from=NOW - DAY, valid_until=NOW + DAY)
    for tag in "ab":
        wait(client, "pdf_priority", tag, "enterprise")
    assert limit(fairness) == 5
    now = timezone.now()
    at(now - 2 * DAY)
    TenantTier.objects.update(valid_from=None, valid_until=now - SECOND)
    # Django takes it as in force, so it leaves the record, which has ended for Redis.
    assert record(client)["tier"] == "enterprise"
    assert limit(fairness) == 1
    assert client.hgetall("{fairness}:waiting") == {"pdf_default": "2"}
    assert fairness.check().findings == ()
    at(NOW)
    TenantTier.objects.update(valid_until=None)
    assert client.hgetall("{fairness}:waiting") == {"pdf_priority": "2"}
    assert limit(fairness) == 5


def test_a_time_that_ends_between_two_publications_moves_the_tasks(fairness, client, at):
    make(valid_until=NOW + DAY)
    wait(client, "pdf_priority", "a", "enterprise")
    client.hset("{fairness}:tenant:acme", "ends_ms", "1")
    at(NOW + 2 * DAY)
    publishing.publish_everything()
    assert client.hgetall("{fairness}:waiting") == {"pdf_default": "1"}
