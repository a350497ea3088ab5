"""Limits of queues and overrides of the database reach Redis."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.db.migrations import RemoveConstraint
from django.db.migrations.executor import MigrationExecutor
from django.utils import timezone
from django_celery_fairness import publishing
from django_celery_fairness.models import LimitOverride, QueueLimit, Tier, UnpublishedChange

from celery_fairness import Fairness
from celery_fairness.app.publish_settings import publish_queues
from celery_fairness.control.key.limits_api import LimitsApi
from celery_fairness.control.queue.queues_api import QueuesApi
from celery_fairness.errors import NotFound
from tests.django.suite.other_process import elsewhere
from tests.support.parts import parts_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("four_tiers")]

LATER = datetime(2100, 1, 1, tzinfo=UTC)


@pytest.fixture
def fairness(wire: Callable[..., Fairness], redis_url: str) -> Fairness:
    return wire(f"fair{redis_url}")


@pytest.fixture
def any_tier_name() -> Iterator[None]:
    """A database without the bound on the characters of a tier's name."""
    app = "django_celery_fairness"
    operation = RemoveConstraint("tier", "fairness_tier_name_characters")
    bounded = MigrationExecutor(connection).loader.project_state()
    unbounded = bounded.clone()
    operation.state_forwards(app, unbounded)
    with connection.schema_editor() as editor:
        operation.database_forwards(app, editor, bounded, unbounded)
    yield
    Tier.objects.all()._raw_delete("default")
    with connection.schema_editor() as editor:
        operation.database_backwards(app, editor, unbounded, bounded)


class Calls:
    """The calls of two methods of ``Fairness``, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[str] = []
        #: Called before each call.
        self.before: Callable[[], None] = lambda: None
        for of, name in ((QueuesApi, "set_limit"), (LimitsApi, "override")):
            monkeypatch.setattr(of, name, self._recording(getattr(of, name)))

    def _recording(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def record(api: Any, name: str, **given: Any) -> Any:
            self.before()
            self.made.append(name)
            return call(api, name, **given)

        return record


@pytest.fixture
def calls(fairness: Fairness, monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch)


def pending() -> list[tuple[str, str]]:
    return list(UnpublishedChange.objects.order_by("pk").values_list("kind", "name"))


def of_queue(fairness: Fairness, queue: str = "emails") -> int | None:
    """The limit of a queue in Redis; -1 if nobody has set one."""
    try:
        limit = fairness.queues.inspect(queue).limit
    except NotFound:
        return -1
    return limit.global_limit if limit and limit.source == "people" else -1


def of_key(fairness: Fairness, key: str = "api") -> dict[str, Any] | None:
    """The numbers of a key's override in Redis."""
    try:
        found = fairness.limits.inspect(key).override
    except NotFound:
        return None
    return found.numbers if found else None


def make_queue(name: str = "emails", number: int | None = 3, **fields: Any) -> QueueLimit:
    return QueueLimit.objects.create(queue=name, global_limit=number, **fields)


def make_override(key: str = "api", number: str = "3", **fields: Any) -> LimitOverride:
    return LimitOverride.objects.create(
        **{"key": key, "concurrency": number, "reason": "a sale", **fields}
    )


def test_a_queues_limit_is_in_force_when_save_returns(fairness):
    row = make_queue(local_limit=2, rate="100/m", throttle="5/s", on_limit="drop")
    limit = fairness.queues.inspect("emails").limit
    assert (limit.global_limit, limit.local_limit, limit.on_limit) == (3, 2, "drop")
    assert limit.rate == {"limit": 100, "period": "PT1M"}
    assert limit.throttle == {"limit": 5, "period": "PT1S"}
    row.global_limit = 0
    row.save()
    assert of_queue(fairness) == 0
    row.global_limit = None
    row.save()
    assert of_queue(fairness) is None
    row.delete()
    assert of_queue(fairness) == -1
    assert pending() == []


def test_an_override_is_in_force_when_save_returns(fairness):
    ada = User.objects.create_user("ada")
    row = make_override(rate="100/m", throttle="unlimited", ends_at=LATER, author=ada)
    found = fairness.limits.inspect("api").override
    rate = {"limit": 100, "period": "PT1M"}
    assert found.numbers == {"concurrency": 3, "rate": rate, "throttle": None}
    assert (found.expires_at, found.reason, found.by) == (LATER, "a sale", "ada")
    row.concurrency, row.rate, row.throttle = "unlimited", "", ""
    row.save()
    assert of_key(fairness) == {"concurrency": None}
    row.delete()
    assert of_key(fairness) is None
    assert pending() == []


def test_an_override_of_a_tenant_and_of_a_queue(fairness):
    make_override("tenant:acme", "7")
    make_override("queue:emails", "0")
    assert fairness.limits.inspect("tenant:acme").limit == 7
    assert of_key(fairness, "queue:emails") == {"concurrency": 0}


def test_nothing_is_published_before_the_commit_and_each_row_once(fairness, calls):
    with transaction.atomic():
        for number in (1, 2, 3):
            QueueLimit.objects.update_or_create({"global_limit": number}, queue="emails")
            LimitOverride.objects.update_or_create(
                {"concurrency": str(number), "reason": "why"}, key="api"
            )
        assert calls.made == []
    assert calls.made == ["emails", "api"]
    assert (of_queue(fairness), of_key(fairness)) == (3, {"concurrency": 3})


def test_a_transaction_that_is_rolled_back_publishes_nothing(fairness, calls):
    with transaction.atomic():
        make_queue()
        make_override()
        transaction.set_rollback(True)
    assert calls.made == []
    assert pending() == []


def test_bulk_operations_are_published(fairness):
    QueueLimit.objects.bulk_create([QueueLimit(queue=each, global_limit=3) for each in "ab"])
    assert [of_queue(fairness, each) for each in "ab"] == [3, 3]
    QueueLimit.objects.filter(queue="a").update(global_limit=5)
    assert [of_queue(fairness, each) for each in "ab"] == [5, 3]
    QueueLimit.objects.filter(queue="a").update(queue="c")
    assert [of_queue(fairness, each) for each in "abc"] == [-1, 3, 5]
    QueueLimit.objects.all().delete()
    assert [of_queue(fairness, each) for each in "abc"] == [-1, -1, -1]

    rows = [LimitOverride(key=each, concurrency="3", reason="why") for each in "ab"]
    LimitOverride.objects.bulk_create(rows)
    for row in rows:
        row.concurrency = "4"
    LimitOverride.objects.bulk_update(rows, ["concurrency"])
    assert [of_key(fairness, each) for each in "ab"] == [{"concurrency": 4}] * 2
    LimitOverride.objects.all().delete()
    assert [of_key(fairness, each) for each in "ab"] == [None, None]
    assert pending() == []


def test_a_row_with_another_name_leaves_nothing_under_the_old_one(fairness):
    queue, override = make_queue(), make_override()
    queue.queue, override.key = "mail", "other"
    queue.save()
    override.save()
    assert (of_queue(fairness), of_queue(fairness, "mail")) == (-1, 3)
    assert (of_key(fairness), of_key(fairness, "other")) == (None, {"concurrency": 3})


def test_a_fixture_is_published(fairness, tmp_path):
    file = tmp_path / "limits.json"
    fields = '"global_limit": 4, "rate": "5/s"'
    model = '"model": "django_celery_fairness.queuelimit"'
    file.write_text(f'[{{{model}, "pk": 1, "fields": {{"queue": "emails", {fields}}}}}]')
    call_command("loaddata", str(file), verbosity=0)
    assert of_queue(fairness) == 4


def test_who_uses_raw_sql_says_so(fairness):
    make_queue()
    make_override()
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("UPDATE django_celery_fairness_queuelimit SET global_limit = 6")
            cursor.execute("UPDATE django_celery_fairness_limitoverride SET concurrency = '7'")
        publishing.publish_on_commit(queues=["emails"], overrides=["api"])
    assert (of_queue(fairness), of_key(fairness)) == (6, {"concurrency": 7})


def test_what_redis_missed_goes_with_the_next_change(fairness, redis_server, caplog):
    kept = make_queue("kept")
    redis_server.pause()
    with caplog.at_level(logging.WARNING, "django_celery_fairness"):
        make_queue()
        make_override()
        kept.delete()
    redis_server.resume()
    assert pending() == [("queue", "emails"), ("override", "api"), ("queue", "kept")]
    assert "run 'manage.py publish'" in caplog.text
    assert publishing.unpublished().count() == 3
    make_queue("other")
    assert (of_queue(fairness), of_key(fairness)) == (3, {"concurrency": 3})
    assert of_queue(fairness, "kept") == -1
    assert pending() == []


def test_publishing_everything_restores_a_redis_that_forgot(fairness, redis_server):
    make_queue()
    make_override()
    make_override("over", ends_at=timezone.now() - timedelta(days=1))
    redis_server.kill()
    redis_server.restart()
    assert of_queue(fairness) == -1
    done = publishing.publish_everything()
    assert (done.queues, done.overrides, done.rejected) == (1, 1, ())
    assert (of_queue(fairness), of_key(fairness)) == (3, {"concurrency": 3})
    assert of_key(fairness, "over") is None


def test_a_second_publication_changes_nothing(fairness, calls):
    make_queue(rate="100/m", throttle="5/s", local_limit=1)
    make_override(rate="1/s", throttle="unlimited", ends_at=timezone.now() + timedelta(days=9))
    make_override("tenant:acme")
    calls.made.clear()
    publishing.publish_everything()
    assert calls.made == []


@pytest.mark.parametrize(
    "change",
    [
        {"concurrency": 9, "reason": "a sale"},
        {"concurrency": 3, "reason": "another"},
        {"concurrency": 3, "reason": "a sale", "until": LATER},
        {"rate": "1/s", "reason": "a sale"},
    ],
)
def test_the_database_replaces_what_a_command_has_set_since(fairness, change):
    make_override()
    before = fairness.limits.inspect("api").override
    fairness.limits.override("api", **change)
    publishing.publish_everything()
    assert fairness.limits.inspect("api").override == before


def test_an_override_that_has_ended_is_not_published_and_stays(fairness, monkeypatch):
    """The end is in Redis, which needs no publication for it."""
    row = make_override(ends_at=LATER)
    monkeypatch.setattr(timezone, "now", lambda: LATER)
    assert publishing.publish_everything().overrides == 0
    # The clock of Redis has not reached the end.
    assert of_key(fairness) == {"concurrency": 3}
    assert LimitOverride.objects.get() == row
    assert row.has_ended
    row.save()
    assert of_key(fairness) is None


def test_a_row_that_cannot_be_published_does_not_stop_the_others(fairness, caplog):
    """Only SQL can store it: the database does not read periods."""
    LimitOverride.objects.bulk_create(
        [
            LimitOverride(key="bad", rate="1/fortnight", reason="why"),
            LimitOverride(key="good", rate="1/s", reason="why"),
            LimitOverride(key="b a d", concurrency="1", reason="why"),
        ]
    )
    make_queue(rate="0/m")
    assert of_key(fairness, "good") == {"rate": {"limit": 1, "period": "PT1S"}}
    assert sorted(pending()) == [("override", "b a d"), ("override", "bad"), ("queue", "emails")]
    errors = dict(UnpublishedChange.objects.values_list("name", "error"))
    assert "1 ms to 366 days" in errors["bad"]
    assert "key of a limit" in errors["b a d"]
    assert "the override 'bad' cannot be published" in caplog.text
    with pytest.raises(CommandError, match="override bad: rate") as failure:
        call_command("publish")
    assert failure.value.returncode == 1
    QueueLimit.objects.update(rate="1/m")
    LimitOverride.objects.exclude(key="good").delete()
    assert pending() == []
    call_command("publish")


def test_a_tier_that_cannot_be_published_does_not_stop_the_others(fairness, caplog, any_tier_name):
    Tier.objects.create(name="Pro Plus", concurrency=3)
    make_queue()
    LimitOverride.objects.create(key="api", rate="1/s", reason="why")
    assert of_queue(fairness) == 3
    assert of_key(fairness, "api") == {"rate": {"limit": 1, "period": "PT1S"}}
    assert pending() == [("tiers", "")]
    assert "letters, digits" in UnpublishedChange.objects.get().error
    assert caplog.text.count("the tiers '' cannot be published") == 1
    Tier.objects.filter(name="Pro Plus").delete()
    assert pending() == []


def test_a_row_that_cannot_be_published_is_logged_once(fairness, caplog):
    LimitOverride.objects.bulk_create([LimitOverride(key="bad", rate="1/fortnight", reason="why")])
    for number in range(3):
        make_queue(f"q{number}")
    LimitOverride.objects.update(reason="another")
    assert caplog.text.count("the override 'bad' cannot be published") == 1
    LimitOverride.objects.update(rate="0/m")
    assert caplog.text.count("the override 'bad' cannot be published") == 2
    # A person who runs the command gets every row that is rejected.
    with pytest.raises(CommandError, match="override bad: rate"):
        call_command("publish")


def test_an_override_of_a_pattern_is_a_row_and_replaces_none_of_a_key(fairness):
    row = make_override("api.*", "3")
    assert fairness.limits.inspect("api.*").limit == 3
    # The key has the same number by the pattern, and has a row of its own all the same.
    make_override("api.stripe", "3")
    assert fairness.limits.inspect("api.stripe").override.pattern is None
    row.delete()
    assert fairness.limits.inspect("api.stripe").limit == 3
    with pytest.raises(NotFound):
        fairness.limits.inspect("api.*")
    assert pending() == []


def test_the_whole_queue_and_its_partitions_have_columns_of_their_own(wire, redis_url):
    fairness = wire(redis_url, queues={"emails": {"by_kind": True, "partition": {"rate": "5/s"}}})
    publish_queues(parts_of(fairness).limiter, fairness.settings.queues)
    row = make_queue(partition_concurrency=1, on_limit="drop")
    part = fairness.queues.inspect("emails").limit.partition
    assert (part.source, part.concurrency, part.rate, part.on_limit) == ("people", 1, None, "drop")
    row.partition_concurrency = None
    row.save()
    limit = fairness.queues.inspect("emails").limit
    assert (limit.global_limit, limit.partition.source) == (3, "settings")
    row.global_limit, row.partition_rate = None, "9/m"
    row.save()
    limit = fairness.queues.inspect("emails").limit
    assert (limit.source, limit.partition.rate) == ("settings", {"limit": 9, "period": "PT1M"})
    assert pending() == []


def test_numbers_of_partitions_stay_pending_while_the_queue_has_none(fairness):
    make_queue(partition_concurrency=1)
    assert pending() == [("queue", "emails")]
    assert "by_args or by_kind" in UnpublishedChange.objects.get().error


def test_a_queue_that_no_gate_checks_stays_pending_with_the_reason(wire, redis_url):
    fairness = wire(redis_url, queues={"emails": {}})
    make_queue()
    make_queue("other")
    assert of_queue(fairness) == 3
    assert pending() == [("queue", "other")]
    assert "the setting queues names" in UnpublishedChange.objects.get().error


@pytest.mark.parametrize("of", ["queue", "override"])
def test_of_two_that_publish_one_row_the_newest_number_stays(fairness, calls, of):
    """A commits 3 and has read 3; before it writes, B commits 5 and publishes it whole."""
    row = make_queue(number=1) if of == "queue" else make_override(number="1")
    field = "global_limit" if of == "queue" else "concurrency"
    calls.made.clear()

    def now() -> Any:
        return of_queue(fairness) if of == "queue" else (of_key(fairness) or {})["concurrency"]

    def interfere() -> None:
        if threading.current_thread() is threading.main_thread():
            calls.before = lambda: None
            elsewhere(lambda: type(row).objects.update(**{field: 5}))
            assert now() == 5

    calls.before = interfere
    setattr(row, field, 3)
    row.save()
    assert len(calls.made) == 3
    assert now() == 5


def test_a_deletion_between_reading_and_writing_is_published(fairness, calls):
    row = make_queue(number=1)

    def interfere() -> None:
        if threading.current_thread() is threading.main_thread():
            calls.before = lambda: None
            elsewhere(lambda: QueueLimit.objects.all().delete())

    calls.before = interfere
    row.global_limit = 3
    row.save()
    assert of_queue(fairness) == -1


def test_a_row_that_is_corrected_meanwhile_is_not_reported(fairness, monkeypatch, caplog):
    numbers = QueueLimit.numbers

    def corrected(row: QueueLimit) -> Any:
        monkeypatch.setattr(QueueLimit, "numbers", numbers)
        elsewhere(lambda: QueueLimit.objects.update(rate="1/m"))
        return numbers(row)

    monkeypatch.setattr(QueueLimit, "numbers", corrected)
    QueueLimit.objects.bulk_create([QueueLimit(queue="emails", rate="0/m")])
    assert fairness.queues.inspect("emails").limit.rate == {"limit": 1, "period": "PT1M"}
    assert "cannot be published" not in caplog.text
    assert pending() == []


def test_the_tier_table_is_not_published_again_for_them(fairness, redis_server):
    with redis_server.client(decode_responses=True) as redis:
        Tier.objects.filter(name="pro").update(concurrency=4)
        before = redis.hget("{fairness}:clock", "version")
        make_queue()
        assert redis.hget("{fairness}:clock", "version") == before
