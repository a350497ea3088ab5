"""A Markdown page with the findings of an analysis.

Invariant: the page depends only on the summary, so the same summary gives the same page.

Weakness: it is a page for people and no format to parse. Names are in code spans, as in the source.
"""

from __future__ import annotations

from examples.code_analysis.analysis import Summary

#: From here on a function is usually called hard to test.
HARD = 10


def write_markdown(summary: Summary) -> str:
    """The page about one package."""
    lines = [
        f"# `{summary['package']}`",
        "",
        (
            f"{summary['lines']:,} lines in {_count(summary['modules'], 'module')}: "
            f"{_count(summary['classes'], 'class', 'classes')}, "
            f"{_count(summary['functions'], 'function')}, {_count(summary['tests'], 'test')}."
        ),
        "",
        f"A function takes {summary['mean_complexity']:.1f} paths on average.",
    ]
    if summary["unreadable"]:
        lines.append(f"{_count(summary['unreadable'], 'file')} could not be parsed.")
    if summary["hardest"]:
        lines += ["", "## Hardest to follow", "", "| function | complexity |", "|---|---:|"]
        for function in summary["hardest"]:
            mark = " **hard**" if function["complexity"] >= HARD else ""
            lines.append(f"| `{function['name']}`{mark} | {function['complexity']} |")
    return "\n".join(lines) + "\n"


def _count(number: int, singular: str, plural: str | None = None) -> str:
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"
