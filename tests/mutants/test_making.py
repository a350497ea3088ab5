"""The mutants themselves: which there are, and that each is a script with one mistake."""

from __future__ import annotations

from collections import Counter
from itertools import chain

import pytest

from celery_fairness.store.scripts import load_script
from tests.mutants import equivalent
from tests.mutants.__main__ import FEWEST, outcome
from tests.mutants.copy import Copy
from tests.mutants.making import KINDS, LUA, files, mutants_of, pieces_of
from tests.mutants.words import words_of

SCRIPTS = [file for file in files() if "includes" not in file]

every_file = pytest.mark.parametrize("file", files())


@every_file
def test_the_same_source_gives_the_same_mutants_each_another_text(file):
    made = mutants_of(file)
    assert made == mutants_of(file)
    texts = {mutant.text for mutant in made}
    assert len(texts) == len(made)
    assert (LUA / file).read_text() not in texts


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_has_enough_of_them_with_its_pieces(script):
    made = [mutant for file in (script, *pieces_of(script)) for mutant in mutants_of(file)]
    assert len(made) >= FEWEST


def test_every_kind_occurs_often():
    kinds = Counter(mutant.kind for file in files() for mutant in mutants_of(file))
    assert set(kinds) == set(KINDS)
    assert min(kinds.values()) > 50


@every_file
def test_no_comment_and_no_text_of_an_error_is_touched(file):
    source = (LUA / file).read_text()
    for mutant in mutants_of(file):
        assert "error_reply" not in mutant.old.partition("\n")[0]
        inside = [w for w in words_of(source) if w.start < mutant.start + len(mutant.old)]
        assert any(word.end > mutant.start for word in inside)
        assert mutant.text.count("--") == source.count("--")


@every_file
def test_every_mutant_is_lua_and_takes_the_place_of_its_file(file, tmp_path, redis_server):
    names = [each.removesuffix(".lua") for each in SCRIPTS if file in {each, *pieces_of(each)}]
    before = {name: load_script(name).source for name in names}
    copy = Copy(tmp_path / "lua")
    with copy.in_use(), redis_server.client() as client:
        for mutant in mutants_of(file):
            with copy.having(mutant):
                # A script is without the functions that it does not use.
                mutated = (load_script(name).source for name in names)
                changed = next(x for x in mutated if x not in before.values())
            client.script_load(changed)
    assert {name: load_script(name).source for name in names} == before


def test_what_is_listed_as_equivalent_is_a_mutant():
    assert list(equivalent.unknown(chain(*map(mutants_of, files())))) == []


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
    assert outcome(mutants_of("release.lua")[0], caught_by, reason)[1] == word


def test_a_list_that_says_something_twice_or_gives_no_reason_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(equivalent, "FILE", tmp_path / "equivalent.txt")
    block = "release.lua\n- local a = 0\n+ local a = 1\n"
    for text in (block, f"{block}  why\n\n{block}  why\n"):
        equivalent.FILE.write_text(text)
        with pytest.raises(ValueError, match=r"a reason, once, got: release\.lua"):
            equivalent.reasons()
    equivalent.FILE.write_text(f"{block}  why\n  and how\n")
    assert equivalent.reasons() == {("release.lua", "local a = 0", "local a = 1"): "why and how"}
    assert list(equivalent.unknown(mutants_of("release.lua"))) == list(equivalent.reasons())
