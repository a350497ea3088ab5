"""Counts the definitions in a Python package from its source, with `ast`.

Invariant: no code of the package is imported or run, so any source is safe. The same source always
gives the same numbers.

Weakness: complexity is the usual rough count, which is one plus the number of branches. A file that
does not parse is counted as unreadable and left out.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

#: How many functions a summary names.
HARDEST_NAMED = 5

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_BRANCHES = (
    ast.If,
    ast.IfExp,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.ExceptHandler,
    ast.match_case,
    ast.comprehension,
)


@dataclass(frozen=True)
class Function:
    """One function or method and its complexity."""

    name: str
    complexity: int


@dataclass(frozen=True)
class Module:
    """The definitions in one source file."""

    name: str
    lines: int
    classes: int
    tests: int
    functions: tuple[Function, ...]


class HardFunction(TypedDict):
    """A function worth a reader's attention."""

    name: str
    complexity: int


class Summary(TypedDict):
    """The small result that travels between the services."""

    package: str
    modules: int
    lines: int
    classes: int
    functions: int
    tests: int
    mean_complexity: float
    hardest: list[HardFunction]
    unreadable: int


def analyze_source(name: str, source: bytes) -> Module:
    """Count one source file.

    Raises:
        SyntaxError: it is not valid for this version of Python.
        ValueError: it has null bytes.
    """
    with warnings.catch_warnings():
        # Old packages have escapes such as "\d" outside raw strings, which does not matter here.
        warnings.simplefilter("ignore")
        tree = ast.parse(source)
    classes = tests = 0
    complexity: dict[str, int] = {}
    # A stack, not recursion: long chains of operators nest deeper than Python's recursion limit.
    waiting: list[tuple[ast.AST, str, str | None]] = [(tree, name, None)]
    while waiting:
        node, scope, function = waiting.pop()
        if isinstance(node, _FUNCTIONS):
            scope = function = _unused(f"{scope}.{node.name}", complexity)
            complexity[function] = 1
            tests += node.name.startswith("test")
        elif isinstance(node, ast.ClassDef):
            classes += 1
            scope, function = f"{scope}.{node.name}", None
        elif function is not None:
            if isinstance(node, _BRANCHES):
                complexity[function] += 1
            elif isinstance(node, ast.BoolOp):
                complexity[function] += len(node.values) - 1
        children = list(ast.iter_child_nodes(node))
        waiting.extend((child, scope, function) for child in reversed(children))
    functions = tuple(Function(*item) for item in sorted(complexity.items()))
    return Module(name, source.count(b"\n"), classes, tests, functions)


def _unused(name: str, taken: Mapping[str, int]) -> str:
    # A property and its setter, or two branches of an `if`, define one name several times.
    candidate, number = name, 1
    while candidate in taken:
        number += 1
        candidate = f"{name}#{number}"
    return candidate


def analyze_package(name: str, folder: Path) -> Summary:
    """Count the modules directly in a package's folder, without sub-packages.

    Raises:
        OSError: the folder or one of its files cannot be read.
    """
    modules: list[Module] = []
    unreadable = 0
    for path in sorted(folder.glob("*.py")):
        module_name = name if path.stem == "__init__" else f"{name}.{path.stem}"
        try:
            modules.append(analyze_source(module_name, path.read_bytes()))
        except (SyntaxError, ValueError):
            unreadable += 1
    return summarize(name, modules, unreadable)


def summarize(package: str, modules: Iterable[Module], unreadable: int = 0) -> Summary:
    """Add up the modules of one package."""
    found = list(modules)
    functions = [function for module in found for function in module.functions]
    total = sum(function.complexity for function in functions)
    hardest = sorted(functions, key=lambda function: (-function.complexity, function.name))
    return {
        "package": package,
        "modules": len(found),
        "lines": sum(module.lines for module in found),
        "classes": sum(module.classes for module in found),
        "functions": len(functions),
        "tests": sum(module.tests for module in found),
        "mean_complexity": round(total / len(functions), 2) if functions else 0.0,
        "hardest": [
            {"name": function.name, "complexity": function.complexity}
            for function in hardest[:HARDEST_NAMED]
        ],
        "unreadable": unreadable,
    }
