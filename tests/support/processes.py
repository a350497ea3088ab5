"""How several test processes share the tests: one at a time, except what is dear to begin.

Every process has servers of its own. RabbitMQ takes longer to start than most tests to run, so two
processes have one. The first test on a database waits for the whole Django suite there, so one
process has all tests of a database. The tests that stay together start first.

Weakness: the process that shares them out knows tests by their names alone.
"""

from __future__ import annotations

from zlib import crc32

from xdist.scheduler import LoadScopeScheduling

RABBITS = 2
_DATABASES = "tests/django/test_on_databases.py::test_django["


class OneByOne(LoadScopeScheduling):  # type: ignore[misc]  # untyped
    """Hands out tests one by one, and those that belong together to one process."""

    def _split_scope(self, nodeid: str) -> str:
        if "rabbit" in nodeid:
            return f"rabbit {crc32(nodeid.encode()) % RABBITS}"
        if nodeid.startswith(_DATABASES):
            return nodeid.partition("-")[0]
        return nodeid
