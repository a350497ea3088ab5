"""Loading scripts: every verb, each piece once, and an error for what is not there."""

from __future__ import annotations

import hashlib
import re

import pytest

from celery_fairness.store import scripts
from celery_fairness.store.scripts import load_script, script_names


def test_every_verb_has_a_script():
    assert script_names() == [
        "acquire",
        "inspect",
        "publish_tenant",
        "publish_tiers",
        "release",
        "renew",
        "supersede",
    ]


@pytest.mark.parametrize("name", script_names())
def test_a_script_is_whole_and_named_by_its_text(name):
    script = load_script(name)
    assert "@include" not in script.source
    assert script.sha == hashlib.sha1(script.source.encode()).hexdigest()
    assert load_script(name) is script


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Write scripts of one's own: ``folder(acquire="...", includes={...})``."""
    monkeypatch.setattr(scripts.resources, "files", lambda package: tmp_path)

    def write(includes=None, **verbs):
        (tmp_path / "lua" / "includes").mkdir(parents=True)
        for name, text in verbs.items():
            (tmp_path / "lua" / f"{name}.lua").write_text(text)
        for name, text in (includes or {}).items():
            (tmp_path / "lua" / "includes" / f"{name}.lua").write_text(text)

    load_script.cache_clear()
    yield write
    load_script.cache_clear()


def test_a_piece_is_included_once_and_what_it_needs_before_it(folder):
    folder(
        {"a": '--- @include "b"\nlocal a\n', "b": "local b\n"},
        verb='--- @include "a"\n--- @include "b"\n--- @include "a"\nreturn 1\n',
    )
    assert load_script("verb").source.split() == ["local", "b", "local", "a", "return", "1"]


def test_only_a_whole_line_includes(folder):
    folder({"a": "local a\n"}, verb='-- see --- @include "a"\n  --- @include "a"\nreturn 1\n')
    assert "local a" not in load_script("verb").source


@pytest.mark.parametrize("text", ['--- @include "nothing"\n', None])
def test_what_is_not_there_is_an_error(folder, text):
    folder({}, **({"verb": text} if text else {}))
    with pytest.raises(FileNotFoundError):
        load_script("verb")


def test_functions_that_nothing_uses_are_left_out(folder):
    pieces = (
        "local function used()\n  return 1\nend\n"
        "local function unused()\n  if used() then\n    return inner()\n  end\nend\n"
    )
    inner = "local function inner()\n  return 2\nend\n"
    folder({"a": inner + pieces}, verb='--- @include "a"\nreturn used()\n')
    source = load_script("verb").source
    assert source.split() == [
        "local",
        "function",
        "used()",
        "return",
        "1",
        "end",
        "return",
        "used()",
    ]


def test_functions_that_are_rarely_called_are_made_when_one_is_called(folder):
    pieces = (
        "local function often()\n  return rare_one() + 1\nend\n"
        "local function rare_one()\n  return 2\nend\n"
        "local function rare_two()\n  return rare_one() + often()\nend\n"
    )
    verb = '--- @include "a"\n--- @rarely rare_one\n--- @rarely rare_two\nreturn rare_two()\n'
    folder({"a": pieces}, verb=verb)
    source = load_script("verb").source
    assert "@rarely" not in source
    hot, _, made = source.partition("rarely = function()\n")
    assert re.findall(r"^local function (\w+)", hot, re.MULTILINE) == ["often"]
    assert "return rarely().rare_one() + 1" in hot
    group, _, body = made.partition("return made_rarely\nend\n")
    assert re.findall(r"^local function (\w+)", group, re.MULTILINE) == ["rare_one", "rare_two"]
    assert "return rare_one() + often()" in group
    assert "made_rarely = {rare_one = rare_one, rare_two = rare_two}" in group
    assert body == "return rarely().rare_two()\n"


def test_a_function_that_is_not_there_is_not_rarely_called(folder):
    folder({"a": "local function one()\nend\n"}, verb='--- @include "a"\n--- @rarely two\none()\n')
    with pytest.raises(ValueError, match="@rarely: no such functions: two"):
        load_script("verb")


def test_what_is_not_often_called_of_what_is_made_later_is_made_later_still(folder):
    pieces = (
        "local function hot()\n  return cold()\nend\n"
        "local function cold()\n  return colder()\nend\n"
        "local function colder()\n  return hot()\nend\n--- @often hot\n"
    )
    verb = '--- @later some "a"\nreturn some().hot() + some().cold()\n'
    folder({"a": pieces}, verb=verb)
    source = load_script("verb").source
    assert "@often" not in source
    first, _, rest = source.partition("seldom = function()\n")
    assert re.findall(r"^local function (\w+)", first, re.MULTILINE) == ["hot"]
    assert "return seldom().cold()" in first
    later, _, behind = rest.partition("return made_seldom\nend\n")
    assert re.findall(r"^local function (\w+)", later, re.MULTILINE) == ["cold", "colder"]
    assert "return colder()" in later
    assert "made_some = {hot = hot, seldom = seldom}" in behind
    assert "return some().hot() + some().seldom().cold()\n" in behind


def test_a_function_that_is_not_there_is_not_often_called(folder):
    verb = '--- @later some "a"\nreturn some().one()\n'
    folder({"a": "local function one()\nend\n--- @often two\n"}, verb=verb)
    with pytest.raises(ValueError, match="@often: no such functions: two"):
        load_script("verb")


@pytest.mark.parametrize("name", [f"dispatch/{name}" for name in script_names("dispatch")])
def test_a_script_defines_every_function_that_it_uses(name):
    folder, _, verb = name.partition("/")
    expanded = re.sub(r"--[^\n]*", "", scripts._expand(folder, f"{verb}.lua", set()))
    source = re.sub(r"--[^\n]*", "", load_script(name).source)
    for function in re.findall(r"^local function (\w+)", expanded, re.MULTILINE):
        is_there = f"local function {function}(" in source
        assert is_there == bool(re.search(rf"(?<!function )\b{function}\(", source)), function
