"""Every deadline of the tests grows with one variable: TEST_PATIENCE."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
#: Commands with deadlines of their own, which measure or judge.
COMMANDS = {"benchmarks", "chaos", "foreign", "mutants"}
#: Arguments that are deadlines of waits. Shorter ones wait for something that must not come.
DEADLINES = {"timeout", "timeout_seconds", "shutdown_timeout"}
SHORT_SECONDS = 1
#: Calls whose first argument is a deadline.
WAITS = {"wait", "join"}
#: Calls in which `timeout` is no wait of the test.
OTHERS = {"on_timeout", "Timeout"}


def numbers_in(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and source of each deadline that is a bare number."""
    for node in ast.walk(tree):
        found: list[ast.expr | None] = []
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if name not in OTHERS:
                found += [each.value for each in node.keywords if each.arg in DEADLINES]
                found += node.args[1:2] if name == "eventually" else []
                found += node.args[:1] if name in WAITS else []
        elif isinstance(node, ast.arguments):
            named = [*node.posonlyargs, *node.args][-len(node.defaults) :] if node.defaults else []
            pairs = [*zip(named, node.defaults, strict=True)]
            pairs += [*zip(node.kwonlyargs, node.kw_defaults, strict=True)]
            found += [value for argument, value in pairs if argument.arg in DEADLINES]
        for value in found:
            number = getattr(value, "value", None)
            if isinstance(number, int | float) and number > SHORT_SECONDS:
                yield value.lineno, ast.unparse(node)


def test_no_deadline_of_a_test_is_a_bare_number() -> None:
    bare = [
        f"{path.relative_to(TESTS)}:{line}: {source}"
        for path in sorted(TESTS.rglob("*.py"))
        if path.relative_to(TESTS).parts[0] not in COMMANDS
        for line, source in numbers_in(ast.parse(path.read_text()))
    ]
    assert not bare, "write it as at_most(…) of tests/support/waiting.py"


def test_patience_multiplies_each_deadline() -> None:
    code = "from tests.support.waiting import at_most; print(at_most(10))"
    for patience in ("1", "7.5"):
        printed = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "TEST_PATIENCE": patience},
            cwd=TESTS.parent,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert float(printed) == 10 * float(patience)
