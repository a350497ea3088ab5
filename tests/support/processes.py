"""How several test processes share the tests: one at a time, except what is dear to begin.

Every process has servers of its own. RabbitMQ takes longer to start than most tests to run, so two
processes have one. The first test on a database waits for the whole Django suite there, so one
process has all tests of a database. One process makes the mutants, for all tests of them, and one
builds the package, once. The tests in a browser share it and a site, so one process has them. The
tests that stay together start first.

Tests with workers leave the processors idle while they wait. `spread` puts the other tests between
them, so that some processes compute while the rest waits. The last tenth only computes: a test that
waits, started last, would keep all other processes waiting.

Weakness: the process that shares them out knows tests by their names alone.
"""

from __future__ import annotations

from typing import Any
from zlib import crc32

import pytest
from xdist.scheduler import LoadScopeScheduling

RABBITS = 2
_DATABASES = "tests/django/test_on_databases.py::test_django["
#: Folders whose tests share what one of them makes.
_SHARING = ("tests/mutants/", "tests/package/")
_BROWSER = "browser.py::"
#: A test with one of these fixtures waits for other processes most of its time.
_WAITING = frozenset(("start_worker", "start_demo", "site_environment", "live_site", "yard"))
#: The share of the computing tests that is kept for the end.
_KEPT = 0.1


def spread(items: list[pytest.Item]) -> None:
    """Put the computing tests evenly between those that wait, and `_KEPT` of them at the end."""
    waiting: list[pytest.Item] = []
    computing: list[pytest.Item] = []
    for item in items:
        waits = _WAITING.intersection(getattr(item, "fixturenames", ()))
        (waiting if waits else computing).append(item)
    ends = {True: len(waiting), False: len(computing) * (1 - _KEPT)}
    places = [
        ((number + 0.5) / ends[waits], item)
        for waits, kind in ((True, waiting), (False, computing))
        for number, item in enumerate(kind)
    ]
    items[:] = [item for _, item in sorted(places, key=lambda place: place[0])]


class OneByOne(LoadScopeScheduling):
    """Hands out tests one by one, and those that belong together to one process."""

    def _split_scope(self, nodeid: str) -> str:
        if "rabbit" in nodeid:
            return f"rabbit {crc32(nodeid.encode()) % RABBITS}"
        if nodeid.startswith(_DATABASES):
            return nodeid.partition("-")[0]
        if _BROWSER in nodeid:
            return _BROWSER
        return next((each for each in _SHARING if nodeid.startswith(each)), nodeid)

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        """Forget a scope whose tests have all run: after each test all scopes are looked at."""
        scope = self._split_scope(self.registered_collections[node][item_index])
        super().mark_test_complete(node, item_index, duration)
        if all(self.assigned_work[node][scope].values()):
            del self.assigned_work[node][scope]
