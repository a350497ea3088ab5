"""The unique key of a task: declared, made of the arguments, and read from a header."""

from __future__ import annotations

import pytest

from celery_fairness.errors import HeaderInvalid, KeyMissing, TaskDeclarationError
from celery_fairness.message.headers import parse_header
from celery_fairness.message.unique import Unique, parse_unique, readable_unique
from celery_fairness.message.unique_option import UniqueSource


def sync(account, user_id=None):
    pass


def source(unique="sync:{args.account}", on_duplicate="drop", debounce=None, at_most=None):
    return UniqueSource("shop.sync", unique, on_duplicate, debounce, at_most, sync)


def no_queue():
    raise AssertionError("this key needs no queue")


def made(its, *args, header=None, queue=no_queue, **options):
    return its.of(header or {"v": 1, "tenant": "42"}, args, {}, queue, **options)


def test_the_key_is_made_of_the_arguments_and_the_header_keeps_the_rest():
    header = made(source(), "a1")
    assert header == {
        "v": 1,
        "tenant": "42",
        "unique": {"key": "sync:a1", "on_duplicate": "drop"},
    }
    its = source("{tenant}-{args.account}-{queue}")
    assert made(its, 7, queue=lambda: "emails")["unique"]["key"] == "42-7-emails"


@pytest.mark.parametrize(
    ("wire", "text"),
    [
        ({"key": "sync:7"}, "d|0|sync:7"),
        ({"key": "sync:7", "on_duplicate": "existing"}, "e|0|sync:7"),
        (
            {"key": "sync:7", "on_duplicate": "replace", "at_most_seconds": 1.5},
            "r|1500|sync:7",
        ),
        ({"key": "sync:7", "more": 1}, "d|0|sync:7"),
    ],
)
def test_a_header_from_any_language_gives_the_word_of_a_put(wire, text):
    assert parse_header({"v": 1, "unique": wire}).unique.text == text
    assert parse_unique(parse_unique(wire).to_wire()).text == text


@pytest.mark.parametrize(
    ("wire", "problem"),
    [
        ("sync:7", "unique: expected an object, got: 'sync:7'"),
        ({}, "unique.key: expected up to 255 letters, digits"),
        ({"key": "a b"}, "got: 'a b'"),
        ({"key": "a\n"}, "unique.key"),
        ({"key": "x" * 256}, "unique.key"),
        ({"key": "x", "on_duplicate": "skip"}, "'drop', 'replace' or 'existing', got: 'skip'"),
        ({"key": "x", "at_most_seconds": -1}, "unique.at_most_seconds: expected a number"),
        ({"key": "x", "at_most_seconds": False}, "unique.at_most_seconds"),
        ({"key": "x", "at_most_seconds": float("nan")}, "unique.at_most_seconds"),
    ],
)
def test_a_wrong_field_of_a_header_is_named(wire, problem):
    with pytest.raises(HeaderInvalid) as caught:
        parse_header({"v": 1, "unique": wire})
    assert problem in str(caught.value)


def test_the_key_of_an_otherwise_wrong_header_holds():
    assert readable_unique({"v": 2, "unique": {"key": "sync:7"}}) == Unique("sync:7")
    assert readable_unique({"v": 2, "unique": {"key": ""}}) is None
    assert readable_unique("no object") is None


@pytest.mark.parametrize(
    ("options", "option", "problem"),
    [
        ({"unique": ""}, "unique", "expected a key such as 'sync:{args.account}', got: ''"),
        ({"unique": None, "on_duplicate": "replace"}, "unique", "expected a key such as"),
        ({"unique": "sync:{args.acount}"}, "unique", "(account, user_id), got: 'acount'"),
        ({"unique": "sync {tenant}"}, "unique", "got: 'sync {tenant}'"),
        ({"unique": None, "on_duplicate": "drop", "debounce": 5}, "debounce", "on_duplicate='r"),
        ({"on_duplicate": "skip"}, "on_duplicate", "got: 'skip'"),
        ({"on_duplicate": "replace", "debounce": 0}, "debounce", "above 0"),
        ({"on_duplicate": "replace", "debounce": "5"}, "debounce", "got: '5'"),
        ({"debounce": 5}, "debounce", "expected on_duplicate='replace', got: 'drop'"),
        ({"on_duplicate": "replace", "at_most": 5}, "debounce_at_most", "expected debounce="),
        (
            {"on_duplicate": "replace", "debounce": 5, "at_most": 2},
            "debounce_at_most",
            "expected at least the seconds of debounce, 5, got: 2",
        ),
    ],
)
def test_a_wrong_option_is_named_at_the_declaration(options, option, problem):
    with pytest.raises(TaskDeclarationError) as caught:
        source(**options)
    assert caught.value.option == option
    assert problem in caught.value.problem


def test_a_field_without_a_value_is_an_error_or_reported_where_nobody_calls():
    with pytest.raises(KeyMissing):
        made(source(), None)
    found = []
    assert "unique" not in made(source(), None, on_error=found.append)
    assert [type(each) for each in found] == [KeyMissing]


def test_a_key_that_the_message_has_already_stays():
    header = {"v": 1, "unique": {"key": "first"}}
    assert made(source(), 7, header=header) is header


def test_without_a_caller_nobody_gets_the_existing_task():
    its = source(on_duplicate="existing")
    assert made(its, 7)["unique"]["on_duplicate"] == "existing"
    assert made(its, 7, has_caller=False)["unique"]["on_duplicate"] == "drop"


@pytest.mark.parametrize("name", ["group_id", "chord", "chain", "link", "link_error"])
def test_the_existing_task_would_lack_what_follows_the_call(name):
    its = source(on_duplicate="existing")
    its.check_call({name: None, "countdown": 3})
    with pytest.raises(TaskDeclarationError, match=f"the '{name}' of this call"):
        its.check_call({name: ["something"]})
    source().check_call({name: ["something"]})
