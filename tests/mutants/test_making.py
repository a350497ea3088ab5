"""The mutants themselves: which there are, and that each is a library with one mistake."""

from __future__ import annotations

import functools
import re
from collections import Counter
from pathlib import Path

import pytest

from celery_fairness.store.library import library
from tests.mutants import equivalent, making
from tests.mutants.__main__ import outcome
from tests.mutants.copy import Copy
from tests.mutants.making import KINDS, LUA, files, reached_by
from tests.mutants.words import words_of
from tests.reference.budget import Budget
from tests.reference.walk import library_of
from tests.support.services import only_in_ci

pytestmark = only_in_ci

#: They are made once: one process has all tests of mutants.
mutants_of = functools.cache(making.mutants_of)

every_file = pytest.mark.parametrize("file", files())


@every_file
def test_the_same_source_gives_the_same_mutants_each_another_text(file):
    made = mutants_of(file)
    assert made == making.mutants_of(file)
    texts = {mutant.text for mutant in made}
    assert len(texts) == len(made)
    assert (LUA / file).read_text() not in texts


def test_how_a_function_is_registered_is_no_mistake():
    for file in files():
        for mutant in mutants_of(file):
            assert "\nregister(" not in f"\n{mutant.old}"
            assert not mutant.change[0].startswith("register(")


def test_a_place_is_the_function_around_it():
    places = {mutant.place for file in files() for mutant in mutants_of(file)}
    assert {"functions/claim.lua", "functions/claim.lua take", "clock.lua tick"} <= places


def test_a_function_runs_its_file_and_what_that_names():
    assert {"functions/size.lua", "queues.lua has_ended", "clock.lua server_now"} < reached_by(
        "size"
    )
    assert "clock.lua tick" not in reached_by("size")
    assert reached_by("adopt") == reached_by("put")
    reached = set().union(*(reached_by(Path(file).stem) for file in files()))
    # The library that checks an installation has modules of its own, which call these too.
    check = (LUA / "check").glob("*.lua")
    texts = "".join(each.read_text() for each in check)
    called = re.findall(r"\b([A-Z]\w*)\.(\w+)\(", texts)
    reached |= {f"{module.lower()}.lua {name}" for module, name in called}
    assert {mutant.unit for file in files() for mutant in mutants_of(file)} <= reached


def test_every_kind_occurs_often():
    kinds = Counter(mutant.kind for file in files() for mutant in mutants_of(file))
    assert set(kinds) == set(KINDS)
    assert min(kinds.values()) > 50


@every_file
def test_no_comment_and_no_text_of_an_error_is_touched(file):
    source = (LUA / file).read_text()
    code = {place for word in words_of(source) for place in range(word.start, word.end)}
    for mutant in mutants_of(file):
        assert "error_reply" not in mutant.old.partition("\n")[0]
        assert not code.isdisjoint(range(mutant.start, mutant.start + len(mutant.old)))
        assert mutant.text.count("--") == source.count("--")


@every_file
def test_every_mutant_is_lua_and_takes_the_place_of_its_file(file, tmp_path, redis_server):
    before = library()
    copy = Copy(tmp_path / "lua")
    first, *others = mutants_of(file)
    with copy.in_use(), redis_server.client() as client:
        for mutant in (first, *others):
            client.script_load(mutant.text)
        client.script_flush()
        # What is inside a function is not run while the library loads.
        for mutant in (first, *(each for each in others if "/" not in file and each.unit == file)):
            with copy.having(mutant):
                made = library()
            assert made.name != before.name
            client.function_load(made.code)
            # Many libraries would fill the memory.
            client.function_flush()
    assert library() == before


def test_the_walk_of_the_reference_calls_the_library_of_the_mutant(tmp_path):
    before, copy = library_of(Budget()).name, Copy(tmp_path / "lua")
    with copy.in_use():
        assert library_of(Budget()).name == before
        with copy.having(mutants_of("functions/purge.lua")[0]):
            assert library_of(Budget()).name != before
        assert library_of(Budget()).name == before


@pytest.mark.parametrize(
    ("caught_by", "reason", "word"),
    [
        ("a test", None, "caught"),
        ("a test", "a reason", "stale"),
        (None, "a reason", "equivalent"),
        (None, None, "survived"),
    ],
)
def test_what_no_test_sees_survives_and_what_is_listed_must_not_be_seen(caught_by, reason, word):
    assert outcome(mutants_of("functions/purge.lua")[0], caught_by, reason)[1] == word


def test_a_list_that_says_something_twice_or_gives_no_reason_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(equivalent, "FILE", tmp_path / "equivalent.txt")
    block = "functions/purge.lua\n- local a = 0\n+ local a = 1\n"
    for text in (block, f"{block}  why\n\n{block}  why\n"):
        equivalent.FILE.write_text(text)
        with pytest.raises(ValueError, match=r"a reason, once, got: functions/purge\.lua"):
            equivalent.reasons()
    equivalent.FILE.write_text(f"{block}  why\n  and how\n")
    assert equivalent.reasons() == {
        ("functions/purge.lua", "local a = 0", "local a = 1"): "why and how"
    }
    assert list(equivalent.unknown(mutants_of("functions/purge.lua"))) == list(equivalent.reasons())
