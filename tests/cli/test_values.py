"""What ``Fairness`` answers with: frozen models, of which a command prints the JSON form."""

from __future__ import annotations

import json
import types
from collections.abc import Iterator
from typing import get_args, get_origin, get_type_hints

import pytest
from pydantic import BaseModel, ValidationError

from celery_fairness.config.limit_spec import Limit, write_limits
from celery_fairness.control.observing import Observing
from celery_fairness.control.overriding import Overriding
from celery_fairness.control.steering import Steering
from celery_fairness.util.value import Value
from tests.cli.clearing import bury, send

API = write_limits((Limit("api", 1),))
METHODS = {
    f"{of.__name__}.{name}": method
    for of in (Observing, Overriding, Steering)
    for name, method in vars(of).items()
    if isinstance(method, types.FunctionType) and not name.startswith("_")
}
#: The command of a method, with its arguments.
VERBS = {
    "status": ("status",),
    "audit": ("audit",),
    "pause": ("pause", "api", "--for", "60"),
    "resume": ("resume", "api"),
    "cool_down_for": ("cool-down", "api", "60"),
    "clear_cool_down": ("cool-down", "api", "--clear"),
    "set_queue_limit": ("queue-limit", "mails", "--global-limit", "2", "--throttle", "5/PT1M"),
    "queue_limit": ("queue-limit", "emails"),
    "explain": ("explain", "second"),
    "cancel": ("cancel", "second"),
    "purge_tenant": ("purge", "42"),
    "dead_letters": ("dead",),
    "requeue": ("dead", "requeue", "buried"),
    "events": ("events",),
}
#: Those that print all else that is known of a key too.
KEYS = {
    "inspect": ("inspect", "api"),
    "override": ("override", "api", "--concurrency", "3", "--for", "60"),
    "list_limits": ("list",),
}


@pytest.fixture
def shop(installation, client, fairness):
    """One task runs, another waits for it, a third is a dead letter; a queue is limited."""
    client.flushdb()
    bury(installation, "43", "buried")
    send(installation, "41", "first", limits=API)
    send(installation, "42", "second", limits=API)
    assert len(installation.claim()) == 1
    fairness.set_queue_limit("emails", rate="5/PT1M")
    # Nothing runs for it.
    client.zadd(installation.key("leases:tenant:9"), {"gone.1": "inf"})
    return installation


@pytest.fixture
def told(run, fairness, monkeypatch, shop):
    """``told("pause", args)``: what the method returns to its command, and what that prints."""

    def tell(method, args):
        answers = []
        ask = getattr(fairness, method)

        def asked(*positional, **named):
            answers.append(ask(*positional, **named))
            return answers[-1]

        monkeypatch.setattr(fairness, method, asked)
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
    dumped = check(fairness.cool_down("api", 4e9))
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
    }


def test_what_no_command_prints_is_plain_too(shop, fairness):
    (refused,) = map(check, fairness.exceeded())
    assert refused == {"key": "api", "strategy": "concurrency", "total": 1}
    *_, minute = map(check, fairness.minutes())
    assert minute["at"].endswith(":00Z")
    assert minute["counts"][0]["queue"] == "celery"
    assert minute["counts"][0]["quiet"][0].keys() == {"below_seconds", "tasks"}
    fairness.pause(key="api")
    (event,) = fairness.events(types=["fairness.paused"]).events
    assert check(event)["data"] == {"key": "api", "until": "", "by": "ada"}


def test_values_are_equal_by_what_they_say_and_may_stand_in_a_set(shop, fairness):
    assert len({fairness.resume(key="api"), fairness.resume(key="api")}) == 1
    assert fairness.resume(key="api") != fairness.pause(key="api")
    assert len({*fairness.dead_letters(), *fairness.dead_letters("celery")}) == 1


@pytest.mark.parametrize("name", METHODS)
def test_a_method_answers_with_a_value_or_with_what_json_says_as_it_is(name):
    returned = get_type_hints(METHODS[name])["return"]
    if get_origin(returned) in (tuple, Iterator):
        returned = get_args(returned)[0]
    plain = (bool, int, type(None), dict[str, int])
    assert returned in plain or issubclass(returned, Value)
