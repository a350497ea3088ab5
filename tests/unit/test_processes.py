"""How the processes of the tests share them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.support.processes import spread


def test_computing_tests_stand_between_those_that_wait_and_at_the_end() -> None:
    def item(name: str, *fixtures: str) -> Any:
        return SimpleNamespace(name=name, fixturenames=("redis_url", *fixtures))

    items = [
        *(item(f"waits{number}", "start_worker") for number in range(3)),
        *(item(f"computes{number}") for number in range(20)),
    ]

    spread(items)

    names = [each.name for each in items]
    assert [name for name in names if name.startswith("computes")] == [
        f"computes{number}" for number in range(20)
    ]
    places = [names.index(f"waits{number}") for number in range(3)]
    assert places == [3, 10, 17]
    assert names[0] == "computes0"
