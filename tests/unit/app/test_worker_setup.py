"""What a starting worker sets and warns about."""

from __future__ import annotations

import pytest
from celery import Celery, Task
from celery.concurrency import get_implementation

from celery_fairness import FairTask
from celery_fairness.app.worker_setup import (
    broker_name,
    prepare_reconnect,
    prepare_worker,
)
from celery_fairness.message.redelivery import longest_countdown_seconds, visibility_seconds


def an_app(broker="memory://", **conf):
    app = Celery("shop", broker=broker, set_as_current=False)
    app.conf.update(conf)
    return app


@pytest.mark.parametrize(
    ("broker", "options", "visibility", "countdown"),
    [
        ("redis://h/0", {}, 3600.0, 3240.0),
        ("redis://h/0", {"visibility_timeout": 100}, 100.0, 90.0),
        ("rediss://h/0", {}, 3600.0, 3240.0),
        ("amqp://h//", {}, None, None),
        ("memory://", {}, None, None),
        ("memory://", {"visibility_timeout": 50}, 50.0, 45.0),
    ],
)
def test_the_broker_says_how_long_a_message_may_wait(broker, options, visibility, countdown):
    app = an_app(broker, broker_transport_options=options)
    assert visibility_seconds(app) == visibility
    assert longest_countdown_seconds(app) == countdown


def test_the_broker_that_is_read_redelivers_and_the_other_one_delays():
    app = an_app("amqp://h//", broker_read_url="redis://h/0")
    assert (visibility_seconds(app), longest_countdown_seconds(app)) == (3600.0, None)


def queues_of_a_worker(app):
    prepare_worker(app)
    return set(app.amqp.queues.consume_from)


def declare(app, **options):
    def body():
        pass

    return app.task(shared=False, **options)(body)


OURS = {f"{s}_{q}" for s in ("analysis", "specview") for q in ("priority", "default", "scheduled")}


@pytest.fixture
def app():
    app = an_app()
    declare(app, name="shop.a", base=FairTask, service="analysis")
    declare(app, name="shop.b", base=FairTask, service="specview")
    declare(app, name="shop.c", base=FairTask)
    declare(app, name="shop.plain", base=Task)
    return app


def test_a_worker_consumes_the_queues_of_all_services_and_the_default(app):
    assert queues_of_a_worker(app) == OURS | {"celery"}


def test_queues_that_are_declared_stay(app):
    from kombu import Queue

    app.conf.task_queues = [Queue("mine"), Queue("analysis_priority", queue_arguments={"x": 1})]
    assert queues_of_a_worker(app) == OURS | {"mine"}
    assert app.amqp.queues["analysis_priority"].queue_arguments == {"x": 1}


def test_a_worker_that_is_told_its_queues_consumes_only_those(app):
    prepare_worker(app)
    app.amqp.queues.select(["analysis_priority"])
    assert set(app.amqp.queues.consume_from) == {"analysis_priority"}


@pytest.mark.parametrize(("conf", "found"), [({}, 0.5), ({"worker_lost_wait": 7.0}, 7.0)])
def test_a_dead_child_is_noticed_soon_unless_the_user_chose(conf, found):
    app = an_app(**conf)
    prepare_worker(app)
    assert app.conf.worker_lost_wait == found


@pytest.mark.parametrize(
    ("pool", "conf", "found"),
    [
        ("threads", {}, False),
        ("gevent", {}, False),
        ("prefork", {}, True),
        ("solo", {}, True),
        ("threads", {"worker_enable_prefetch_count_reduction": True}, True),
    ],
)
def test_only_pools_that_acknowledge_beside_the_loop_fetch_as_much_after_a_cut(pool, conf, found):
    app = an_app(**conf)
    prepare_reconnect(app, get_implementation(pool)(limit=1))
    assert app.conf.worker_enable_prefetch_count_reduction is found


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("redis://h", "redis://u:secret@H:6379/0", True),
        ("amqp://h", "pyamqp://u:secret@h:5672//", True),
        ("amqp://a;amqp://b", "amqp://u:x@b;amqp://a", True),
        ("redis://h/0", "redis://h/1", False),
        ("redis://h:6379/0", "redis://h:6380/0", False),
        ("amqp://h/a", "amqp://h/b", False),
        ("amqp://a", "amqp://b", False),
    ],
)
def test_a_broker_has_a_name_without_its_secrets(one, other, same):
    names = [broker_name(an_app(url)) for url in (one, other)]
    assert (names[0] == names[1]) is same
    assert "secret" not in "".join(names)


def test_two_apps_with_key_prefixes_on_one_redis_are_on_two_brokers():
    apps = [
        an_app("redis://h", broker_transport_options={"global_keyprefix": prefix})
        for prefix in ("a", "b")
    ]
    assert broker_name(apps[0]) != broker_name(apps[1])
