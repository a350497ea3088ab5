"""How several test processes share the tests: one at a time, except what is dear to begin.

Every process has servers of its own. RabbitMQ takes longer to start than most tests to run, and the
first test on a database waits for the whole Django suite there, so those stay in one process each.

Weakness: the process that shares them out knows tests by their names alone.
"""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

_DATABASES = "tests/django/test_on_databases.py::test_django["


class OneByOne(LoadScopeScheduling):  # type: ignore[misc]  # untyped
    """Hands out tests one by one, and those that belong together to one process."""

    def _split_scope(self, nodeid: str) -> str:
        if "rabbit" in nodeid:
            return "rabbit"
        if nodeid.startswith(_DATABASES):
            return nodeid.partition("-")[0]
        return nodeid
