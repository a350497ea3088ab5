"""What the analysis counts, on a package whose numbers are known."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from examples.code_analysis.analysis import HARDEST_NAMED, analyze_package, analyze_source
from examples.code_analysis.catalogue import find_folder, find_packages

PLAIN = b"""\
def one():
    return 1
"""

BRANCHES = b"""\
class Shop:
    class Till:
        pass

    def sell(self, wares, cash):
        for ware in wares:                              # 2
            if ware and cash or not ware:               # 3, and 2 more: `and`, `or`
                continue
            while cash:                                 # 6
                cash -= 1
        try:
            return [ware for ware in wares if ware]     # 7
        except ValueError:                              # 8
            return None if cash else cash               # 9

    @property
    def open(self):
        return True

    @open.setter
    def open(self, value):
        match value:
            case 1:                                     # 2
                pass
            case _:                                     # 3
                pass


async def serve(stream):
    async for order in stream:                          # 2
        def inner():
            return 1 if order else 2                    # inner: 2
        yield inner
"""

TESTS = b"""\
class TestShop:
    def test_sells(self): pass
    def helper(self): pass

def test_opens(): pass
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "shop"
    (folder / "inner").mkdir(parents=True)
    (folder / "__init__.py").write_bytes(PLAIN)
    (folder / "branches.py").write_bytes(BRANCHES)
    (folder / "test_shop.py").write_bytes(TESTS)
    (folder / "broken.py").write_bytes(b"def (:\n")
    (folder / "nulls.py").write_bytes(b"x = '\0'\n")
    (folder / "notes.txt").write_bytes(PLAIN)
    (folder / "inner" / "__init__.py").write_bytes(PLAIN)
    return folder


def test_a_package_is_counted(package: Path) -> None:
    summary = analyze_package("shop", package)

    assert summary["modules"] == 3
    assert summary["unreadable"] == 2
    assert summary["lines"] == sum(text.count(b"\n") for text in (PLAIN, BRANCHES, TESTS))
    assert summary["classes"] == 3
    assert summary["functions"] == 1 + 5 + 3
    assert summary["tests"] == 2
    assert summary["hardest"][0] == {"name": "shop.branches.Shop.sell", "complexity": 9}
    assert len(summary["hardest"]) == HARDEST_NAMED
    # one 1; sell 9, open 1, its setter 3, serve 2, inner 2; three in the tests 1 each
    assert summary["mean_complexity"] == round((1 + 9 + 1 + 3 + 2 + 2 + 3) / 9, 2)


def test_complexity_belongs_to_the_innermost_function() -> None:
    found = {f.name: f.complexity for f in analyze_source("m", BRANCHES).functions}

    assert found == {
        "m.Shop.sell": 9,
        "m.Shop.open": 1,
        "m.Shop.open#2": 3,
        "m.serve": 2,
        "m.serve.inner": 2,
    }


def test_deep_nesting_does_not_end_it() -> None:
    depth = 900
    module = analyze_source("m", b"def f():\n return " + b"+".join([b"1"] * depth) + b"\n")

    assert module.functions[0].complexity == 1


def test_warnings_of_old_source_are_not_ours() -> None:
    # Warnings are errors in this suite.
    analyze_source("m", b'x = "\\d" is 3\n')


def test_source_that_is_not_python_is_an_error() -> None:
    with pytest.raises(SyntaxError):
        analyze_source("m", b"def (:\n")


def test_real_source_agrees_with_a_plain_count() -> None:
    folder = find_folder("json")
    trees = [ast.walk(ast.parse(path.read_bytes())) for path in folder.glob("*.py")]
    nodes = [node for tree in trees for node in tree]

    summary = analyze_package("json", folder)

    assert summary["classes"] == sum(isinstance(node, ast.ClassDef) for node in nodes)
    assert summary["functions"] == sum(isinstance(node, ast.FunctionDef) for node in nodes)
    assert summary["tests"] == 0


def test_packages_are_found_without_being_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "explosive" / "inner"
    folder.mkdir(parents=True)
    for place in (folder.parent, folder):
        (place / "__init__.py").write_text("raise RuntimeError('imported')\n" + "#" * 110_000)
    monkeypatch.syspath_prepend(str(tmp_path))

    found = find_packages(["explosive", "surely_missing"])

    assert [package.name for package in found] == ["explosive", "explosive.inner"]
    assert find_folder("explosive.inner") == folder
    assert not any(package.standard for package in found)


def test_the_machine_has_enough_to_analyze() -> None:
    found = find_packages()

    assert len(found) > 20
    assert any(package.standard for package in found)
    assert any(not package.standard for package in found)
