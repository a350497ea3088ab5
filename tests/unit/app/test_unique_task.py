"""A unique FairTask where nothing acts by its key, and where Celery calls it."""

from __future__ import annotations

import pytest

from celery_fairness import FairTask
from celery_fairness.app.parts import Parts
from celery_fairness.errors import TaskDeclarationError

ON_STOCK = "option 'unique': expected a broker at fairredis://"


@pytest.fixture
def shop(make_shop):
    made = make_shop()

    @made.task(base=FairTask, tenant="user", name="shop.sync", unique="sync:{args.account}")
    def sync(account, user=None):
        return account

    made.sync = sync
    return made


@pytest.fixture
def fair(shop, monkeypatch):
    """The shop, whose broker is taken for one that claims fairly."""
    monkeypatch.setattr(Parts, "claims_fairly", property(lambda self: True))
    return shop


def test_a_call_and_a_worker_at_a_gate_say_that_nothing_acts_by_the_key(shop):
    with pytest.raises(TaskDeclarationError, match=ON_STOCK):
        shop.sync.delay("a1", user="42")
    with pytest.raises(TaskDeclarationError, match=ON_STOCK):
        shop.sync.start_strategy(shop.app, None)


@pytest.mark.parametrize("by_name", [False, True])
def test_every_message_has_the_key(fair, by_name):
    if by_name:
        fair.app.send_task("shop.sync", ("a1",), {"user": "42"})
    else:
        fair.sync.delay("a1", user="42")
    assert fair.one().fairness["unique"] == {"key": "sync:a1", "on_duplicate": "drop"}


def test_a_name_without_a_value_for_its_key_is_sent_as_invalid(fair):
    fair.app.send_task("shop.sync", (None,), {"user": "42"})
    header = fair.one().fairness
    assert "unique" not in header
    assert "args.account" in header["invalid"]


@pytest.mark.parametrize(("options", "countdown"), [({}, 5), ({"countdown": 60}, 60)])
def test_a_debounced_call_waits_unless_it_has_a_time_of_its_own(
    fair, monkeypatch, options, countdown
):
    @fair.task(
        base=FairTask,
        tenant="user",
        name="shop.preview",
        unique="preview:{args.document}",
        on_duplicate="replace",
        debounce=5,
    )
    def preview(document, user=None):
        return document

    given = []
    monkeypatch.setattr(fair.app, "send_task", lambda *args, **kw: given.append(kw))
    preview.apply_async(("d1",), {"user": "42"}, **options)
    assert given[0]["countdown"] == countdown


def test_an_eager_call_runs_and_tells_what_a_real_one_would(fair):
    fair.app.conf.task_always_eager = True
    assert fair.sync.delay("a1", user="42").get() == "a1"
    with pytest.raises(Exception, match=r"args\.account"):
        fair.sync.delay(None, user="42")
