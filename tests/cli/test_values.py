"""What ``Fairness`` answers with: frozen models, of which a command prints the JSON form."""

from __future__ import annotations

import json
import types
from collections.abc import Iterator
from datetime import datetime
from typing import get_args, get_origin, get_type_hints

import pytest
from pydantic import BaseModel, ValidationError

from celery_fairness.config.limit_spec import Limit, write_limits
from celery_fairness.control.health.events_api import EventsApi
from celery_fairness.control.health.stats_api import StatsApi
from celery_fairness.control.key.limits_api import LimitsApi
from celery_fairness.control.queue.queues_api import QueuesApi
from celery_fairness.control.task.tasks_api import TasksApi
from celery_fairness.control.tenant.tenants_api import TenantsApi
from celery_fairness.util.value import Value
from tests.cli.clearing import bury, send

API = write_limits((Limit("api", concurrency=1),))
METHODS = {
    f"{of.__name__}.{name}": method
    for of in (LimitsApi, TenantsApi, QueuesApi, TasksApi, EventsApi, StatsApi)
    for name, method in vars(of).items()
    if isinstance(method, types.FunctionType) and not name.startswith("_")
}
#: The command of a method, with its arguments.
VERBS = {
    "stats.status": ("status",),
    "stats.observed": ("observed",),
    "limits.pause": ("limit", "pause", "api", "--for", "60"),
    "limits.resume": ("limit", "resume", "api"),
    "limits.cool_down": ("limit", "cool-down", "api", "--for", "60"),
    "limits.clear_cool_down": ("limit", "cool-down", "api", "--clear"),
    "tenants.pause": ("tenant", "pause", "42", "--for", "1h"),
    "tenants.resume": ("tenant", "resume", "42"),
    "tenants.purge": ("tenant", "purge", "42"),
    "queues.list": ("queue", "list"),
    "queues.inspect": ("queue", "show", "emails"),
    "queues.set_limit": ("queue", "limit", "mails", "--global-limit", "2", "--throttle", "5/PT1M"),
    "tasks.explain": ("task", "explain", "second"),
    "tasks.cancel": ("task", "cancel", "second"),
    "tasks.dead_letters": ("task", "dead"),
    "tasks.requeue": ("task", "requeue", "buried"),
    "events.read": ("events",),
}
#: Those that print all else that is known of a key too.
KEYS = {
    "limits.inspect": ("limit", "show", "api"),
    "limits.override": ("limit", "override", "api", "--concurrency", "3", "--for", "60"),
    "limits.list": ("limit", "list"),
    "tenants.inspect": ("tenant", "show", "42"),
    "tenants.override": ("tenant", "override", "42", "--concurrency", "3"),
}


@pytest.fixture
def shop(installation, client, fairness):
    """One task runs, another waits for it, a third is a dead letter; a queue is limited."""
    client.flushdb()
    bury(installation, "43", "buried")
    send(installation, "41", "first", limits=API)
    send(installation, "42", "second", limits=API)
    assert len(installation.claim()) == 1
    fairness.queues.set_limit("emails", rate="5/PT1M")
    # Nothing runs for it.
    client.zadd(installation.key("leases:tenant:9"), {"gone.1": "inf"})
    return installation


@pytest.fixture
def told(run, fairness, monkeypatch, shop):
    """``told("limits.pause", args)``: the answer of the method, and what its command prints."""

    def tell(method, args):
        answers = []
        noun, verb = method.split(".")
        api = getattr(fairness, noun)
        ask = getattr(api, verb)

        def asked(*positional, **named):
            answers.append(ask(*positional, **named))
            return answers[-1]

        monkeypatch.setattr(api, verb, asked)
        shown = json.loads(run(*args, "--json").stdout)
        return answers[-1], shown

    return tell


def check(value):
    """Return the JSON form of a frozen model."""
    assert isinstance(value, BaseModel)
    for name in type(value).model_fields:
        with pytest.raises(ValidationError, match="frozen"):
            setattr(value, name, None)
    dumped = value.model_dump(mode="json")
    assert json.loads(json.dumps(dumped)) == dumped
    return dumped


@pytest.mark.parametrize("method", VERBS)
def test_a_command_prints_the_json_form_of_what_its_method_returns(told, method):
    answer, shown = told(method, VERBS[method])
    assert shown
    if isinstance(answer, tuple):
        assert shown == [check(each) for each in answer]
    else:
        assert shown == check(answer)
        assert list(shown) == list(check(answer))


@pytest.mark.parametrize("method", KEYS)
def test_what_is_printed_of_a_key_begins_with_its_object(told, method):
    answer, shown = told(method, KEYS[method])
    dumped = check(answer)
    for its, printed in zip(
        dumped.get("items", [dumped]), shown.get("items", [shown]), strict=True
    ):
        assert list(printed)[: len(its)] == list(its)
        assert its.items() <= printed.items()


def test_a_cool_down_until_a_time_has_the_same_form(shop, fairness):
    dumped = check(fairness.limits.cool_down("api", until=4e9))
    assert dumped.pop("cools_until").endswith("Z")
    assert dumped == {
        "key": "api",
        "paused": False,
        "cool_down_seconds": pytest.approx(86_400, abs=1),
        "pause_seconds": None,
        "paused_until": None,
        "paused_since": None,
        "paused_by": "",
        "pause_of": "",
        "reported_left": None,
        "reported_until": None,
        "known": True,
    }


def test_what_no_command_prints_is_plain_too(shop, fairness):
    (rejected,) = map(check, fairness.stats.rejections().keys)
    assert rejected == {"key": "api", "strategy": "concurrency", "total": 1}
    *_, minute = map(check, fairness.stats.minutes())
    assert minute["at"].endswith(":00Z")
    assert minute["counts"][0]["queue"] == "celery"
    assert minute["counts"][0]["alone"][0].keys() == {"below_seconds", "tasks"}
    fairness.limits.pause("api")
    (event,) = fairness.events.read(types=["fairness.paused"]).events
    assert check(event)["data"] == {"key": "api", "until": "", "by": "ada"}


def test_values_are_equal_by_what_they_say_and_may_stand_in_a_set(shop, fairness):
    assert len({fairness.limits.resume("api"), fairness.limits.resume("api")}) == 1
    assert fairness.limits.resume("api") != fairness.limits.pause("api")
    assert (
        len({*fairness.tasks.dead_letters().items, *fairness.tasks.dead_letters("celery").items})
        == 1
    )


@pytest.mark.parametrize("name", METHODS)
def test_a_method_answers_with_a_value_or_with_a_plain_type(name):
    returned = get_type_hints(METHODS[name])["return"]
    if get_origin(returned) in (tuple, Iterator):
        returned = get_args(returned)[0]
    plain = (bool, int, type(None), dict[str, int], datetime | None)
    assert returned in plain or issubclass(returned, Value)
