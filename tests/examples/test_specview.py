"""The page about an analysis."""

from __future__ import annotations

from examples.code_analysis.analysis import Summary
from examples.code_analysis.specview import write_markdown

SUMMARY: Summary = {
    "package": "shop.till",
    "modules": 1,
    "lines": 1234,
    "classes": 2,
    "functions": 3,
    "tests": 0,
    "mean_complexity": 4.0,
    "hardest": [
        {"name": "shop.till.Till.pay", "complexity": 10},
        {"name": "shop.till.open", "complexity": 1},
    ],
    "unreadable": 1,
}


def test_the_page() -> None:
    assert write_markdown(SUMMARY) == (
        "# `shop.till`\n"
        "\n"
        "1,234 lines in 1 module: 2 classes, 3 functions, 0 tests.\n"
        "\n"
        "A function takes 4.0 paths on average.\n"
        "1 file could not be parsed.\n"
        "\n"
        "## Hardest to follow\n"
        "\n"
        "| function | complexity |\n"
        "|---|---:|\n"
        "| `shop.till.Till.pay` **hard** | 10 |\n"
        "| `shop.till.open` | 1 |\n"
    )


def test_a_package_without_functions_has_no_table() -> None:
    page = write_markdown({**SUMMARY, "functions": 0, "hardest": [], "unreadable": 0})

    assert "Hardest" not in page
    assert "parsed" not in page
