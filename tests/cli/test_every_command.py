"""Every command of the tree: its text, its JSON against its schema, and its exit codes.

A new command fails here until it has a scene.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import click
import jsonschema_rs
import pytest
from celery import Celery
from click.testing import CliRunner
from pydantic import TypeAdapter

from celery_fairness.cli.answers import Shown, Verb, verbs
from celery_fairness.cli.commands import fairness as group
from celery_fairness.cli.nouns import nouns
from celery_fairness.config.limit_spec import Limit, write_limits
from tests.cli.clearing import bury, send

API = write_limits((Limit("api", concurrency=1),))
#: The same as a key of one tenant, which needs no permits in a partition.
OWN_API = write_limits((Limit("api", concurrency=1, private=True),))
PASSWORD = "correct-horse-battery"
VERBS = dict(verbs(nouns))


class Scene(NamedTuple):
    """Words behind a command, its exit code, and a pattern of its text."""

    words: str
    code: int
    text: str


#: The scenes of each command with ``--json``. The first one needs Redis.
SCENES = {
    "status": [Scene("", 0, "^dispatch path")],
    "doctor": [Scene("", 1, "^PROBLEM queues: ")],
    "observed": [Scene("", 0, "^0 of 0 workers only observe$"), Scene("--top 0", 2, "")],
    "limit list": [Scene("", 0, "^key +tier +limit"), Scene("--per-page 101", 2, "")],
    "limit show": [
        Scene("api", 0, "^api: held 1$"),
        Scene("tenant:stranger", 1, "^idle or never seen: "),
        Scene("stranger", 1, ""),
        Scene("tenant:", 2, ""),
    ],
    "limit pause": [
        Scene("api --for 60", 0, "^api: paused until "),
        Scene("api --for soon", 2, ""),
    ],
    "limit resume": [Scene("api", 0, "^api: not stopped: tasks start as its limits allow$")],
    "limit cool-down": [
        Scene("api --for 60", 0, "^api: cool-down until "),
        Scene("api --clear", 0, "^api: not stopped: tasks start as its limits allow$"),
        Scene("api", 2, ""),
    ],
    "limit override": [
        Scene("api --concurrency 3 --rate 5/m", 0, "^api: concurrency 3, rate 5/"),
        Scene("paid --clear", 0, "^paid: its numbers are its own again$"),
        Scene("api --clear", 1, "^api: has no override$"),
        Scene("api", 2, ""),
    ],
    "tenant show": [
        Scene("42", 0, "^tenant:42: tier free"),
        Scene("stranger", 1, "^idle or never seen: "),
    ],
    "tenant pause": [Scene("42 --for 1h", 0, "^tenant:42: paused until ")],
    "tenant resume": [Scene("42", 0, "^tenant:42: not stopped: tasks start as its limits allow$")],
    "tenant override": [
        Scene("42 --concurrency 3", 0, "^tenant:42: concurrency 3 until it is cleared"),
        Scene("42 --clear", 1, "^tenant:42: has no override$"),
        Scene("42", 2, ""),
    ],
    "tenant tier": [
        Scene("42", 0, "^tenant:42: tier free"),
        Scene("42 pro", 0, "^tenant:42: tier pro"),
        Scene("42 --clear", 0, "^tenant:42: tier free"),
        Scene("42 none", 2, ""),
    ],
    "tenant purge": [Scene("42", 0, "^tenant 42: 1 task cancelled$")],
    "queue list": [Scene("", 0, "^queue +waiting")],
    "queue show": [Scene("emails", 0, "^emails: ")],
    "queue limit": [
        Scene("mails --global-limit 2 --throttle 5/PT1M", 0, "^mails: "),
        Scene("emails --clear", 0, "^emails: its numbers are those of the settings again$"),
        Scene("mails --clear", 1, "^mails: nothing was set$"),
        Scene("mails", 2, ""),
    ],
    "queue migrate": [
        Scene("celery --to redis", 0, "^celery: 1 task moved"),
        Scene("other --to redis", 1, "^other: "),
        Scene("celery", 2, ""),
    ],
    "task list": [
        Scene("", 0, "^second +shop.work +waiting +concurrency of api "),
        Scene("--tenant nobody", 0, "^no tasks$"),
        Scene("--state later", 2, ""),
        Scene("--cursor x", 2, ""),
    ],
    "task explain": [Scene("second", 0, "second"), Scene("stranger", 1, "")],
    "task cancel": [
        Scene("second", 0, "^task second: cancelled"),
        Scene("first", 1, "^task first: runs at "),
        Scene("stranger", 1, ""),
        Scene("--tenant 42 --yes", 0, "^1 task cancelled$"),
        Scene("--tenant nobody --yes", 0, "^0 tasks cancelled$"),
        Scene("--tenant 42", 2, ""),
        Scene("second --tenant 42", 2, ""),
        Scene("--state waiting --yes", 2, ""),
        Scene("", 2, ""),
    ],
    "task dead": [Scene("", 0, "^celery +shop.work +buried")],
    "task requeue": [Scene("buried", 0, "^task buried: waits again"), Scene("first", 1, "")],
    "events": [
        Scene("--types fairness.paused", 0, "fairness.paused +key=paid"),
        Scene("--types fairness.pausd", 2, ""),
    ],
    "library": [
        Scene("", 0, "^library|^name"),
        Scene("--delete cf_000000000000", 0, "^deleted cf_000000000000$"),
        Scene("--delete cf_none", 1, ""),
    ],
    "uninstall": [
        Scene("", 0, "^nothing is deleted; --yes deletes the keys$"),
        Scene("--yes", 1, "^nothing is deleted$"),
        Scene("--yes --with-tasks", 0, r"^namespace fairness on .*: \d+ keys deleted$"),
    ],
    "check": [Scene("", 1, "^1 finding in "), Scene("--repair", 0, "^ *repaired: ")],
}
#: Commands without ``--json``.
OTHERS = {
    "top": "",
    "exporter": "",
    "worker": "mail",
    "schema": "",
}


@pytest.fixture(autouse=True)
def no_wait_for_leases(monkeypatch):
    """The task that runs does not end, so a migration would wait for a lease and a half."""
    monkeypatch.setattr("celery_fairness.transport.migration.LEASES_WAITED", 0)


@pytest.fixture
def shop(installation, client, make_fairness, partitions):
    """One task runs, one waits for it, one is a dead letter; there is one of all else."""
    client.flushdb()
    client.function_load(
        "#!lua name=cf_000000000000\nredis.register_function('cf_000000000000', function() end)",
        True,
    )
    bury(installation, "43", "buried")
    # With four partitions both tenants are in one of them, as their limit is.
    limits = API if partitions == 1 else OWN_API
    send(installation, "40", "first", limits=limits)
    send(installation, "42", "second", limits=limits)
    send(installation, "44", "third", queue="other")
    assert len(installation.claim()) == 1
    # Another process than that of the command.
    fairness = make_fairness()
    if partitions == 1:
        fairness.queues.set_limit("emails", rate="5/PT1M")
    fairness.limits.override("paid", concurrency=1)
    fairness.limits.pause("paid")
    # A pause holds its task, so it does not move.
    fairness.tenants.pause("44")
    # Nothing runs for it.
    client.zadd(installation.key("leases:tenant:9"), {"gone.1": "inf"})
    yield installation
    if b"cf_000000000000" in str(client.function_list()).encode():
        client.function_delete("cf_000000000000")


def commands(of: click.Group, *path: str) -> Iterator[str]:
    """Yield the name of each command that is no group."""
    for name, command in of.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, *path, name)
        else:
            yield " ".join((*path, name))


def closed(schema: Any) -> Any:
    """Return a schema in which an object has no other fields than those that are named."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: closed(value) for name, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        found["additionalProperties"] = False
    return found


def test_every_command_is_here():
    assert sorted(commands(nouns)) == sorted([*SCENES, *OTHERS])
    assert list(VERBS) == [name for name in commands(nouns) if name in VERBS]
    assert sorted(VERBS) == sorted(SCENES)


@pytest.mark.parametrize("name", SCENES)
def test_what_takes_json_has_a_schema_of_its_fields(name):
    schema = VERBS[name].schema(name)
    assert schema["title"] == f"celery fairness {name} --json"
    kinds = [schema, *schema.get("$defs", {}).values()]
    assert any(each.get("properties") for each in kinds)
    # A serializer without a schema would allow anything.
    assert [each for each in kinds if each.get("additionalProperties") is True] == []
    done = CliRunner().invoke(group, ["schema", *name.split()])
    assert (done.exit_code, json.loads(done.stdout)) == (0, schema)


def test_all_schemas_at_once():
    done = CliRunner().invoke(group, ["schema"])
    assert list(json.loads(done.stdout)) == list(VERBS)


def test_a_schema_of_what_has_none_is_wrong_usage():
    done = CliRunner().invoke(group, ["schema", "limit", "shw"])
    assert (done.exit_code, done.stdout) == (2, "")
    assert "did you mean 'limit show'?" in done.stderr


#: Commands that an installation with several partitions does not have.
OF_ONE = {"queue limit", "queue show", "queue migrate"}
CASES = [
    pytest.param(name, scene, count, id=f"{name} {scene.words} in {count}")
    for name, scenes in SCENES.items()
    for scene in scenes
    for count in ((1,) if name in OF_ONE else (1, 4))
]
WITH_CASES = pytest.mark.parametrize(
    ("name", "scene", "partitions"), CASES, indirect=["partitions"]
)


@WITH_CASES
def test_a_text_and_its_exit_code(name, scene, shop, run):
    done = run(*name.split(), *scene.words.split())
    assert done.exit_code == scene.code, done.output
    if scene.text:
        assert re.search(scene.text, done.stdout, re.MULTILINE), done.stdout
    else:
        assert (done.stdout, bool(done.stderr)) == ("", True)


@WITH_CASES
def test_json_is_as_its_schema_says_with_the_same_exit_code(name, scene, shop, run):
    done = run(*name.split(), *scene.words.split(), "--json")
    assert done.exit_code == scene.code, done.output
    if not scene.text:
        assert (done.stdout, bool(done.stderr)) == ("", True)
        return
    jsonschema_rs.validate(closed(VERBS[name].schema(name)), json.loads(done.stdout))


def test_a_followed_event_is_a_line_as_the_schema_says(shop, fairness):
    verb = VERBS["events"]
    (event, *_) = fairness.events.read(types=["fairness.paused"]).events
    line = verb.plain(event)
    jsonschema_rs.validate(closed(verb.schema("events")), line)
    assert line["subject" if "subject" in line else "type"] == "fairness.paused"


def test_a_field_that_the_schema_does_not_have_is_found():
    verb = VERBS["task requeue"]
    schema = closed(verb.schema("task requeue"))
    with pytest.raises(jsonschema_rs.ValidationError):
        jsonschema_rs.validate(schema, {"task_id": "a", "queue": "b", "more": 1})


def test_a_union_has_the_schema_of_each_of_its_types():
    made = Verb("made")

    def ask() -> Shown[int | Iterator[str]]:
        raise AssertionError

    made.ask = ask
    assert made.kind == int | str
    assert TypeAdapter(made.kind).validate_python("a") == "a"


@pytest.mark.parametrize("name", [*SCENES, *OTHERS])
def test_an_option_that_nothing_has_is_wrong_usage(name, run):
    done = run(*name.split(), "--nonsense")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "Usage:" in done.stderr


@pytest.mark.parametrize("name", [*SCENES, "top --once", "exporter", "worker mail"])
def test_an_app_without_fairness_is_wrong_usage(name, run):
    words = SCENES[name][0].words.split() if name in SCENES else []
    done = run(*name.split(), *words, app=Celery("plain", set_as_current=False))
    assert (done.exit_code, done.stdout) == (2, "")
    assert "the Celery app 'plain' has no Fairness" in done.stderr


@pytest.mark.parametrize("as_json", [[], ["--json"]], ids=["text", "json"])
@pytest.mark.parametrize("name", SCENES)
def test_a_redis_that_is_away_ends_it_with_69_and_shows_no_password(
    name, as_json, make_fairness, run
):
    away = make_fairness(url=f"fairredis://:{PASSWORD}@127.0.0.1:1/0")
    done = run(*name.split(), *SCENES[name][0].words.split(), *as_json, of=away)
    assert (done.exit_code, done.stdout) == (69, "")
    assert "redis://127.0.0.1:1/0 does not answer" in done.stderr
    assert PASSWORD not in done.stderr
