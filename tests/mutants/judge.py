"""One run of pytest that asks the same tests of every mutant, until one of them fails.

The suite has these tests anyway: random operations that the reference judges, and tests of the
scheduler, gates, single functions and the transport. A test judges a mutant only if it calls a
function of the library that may run the mutant's unit.

Invariant: all tests pass before the first mutant, so what fails afterwards fails by the mutant.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from tests.mutants.copy import Copy
from tests.mutants.making import reached_by
from tests.support.redis_server import RedisServer

#: In the order in which they are asked at first.
SUITES = (
    "tests/reference/test_reference.py",
    "tests/scheduler/test_actions.py",
    "tests/scheduler/test_parked.py",
    "tests/scheduler/test_holds.py",
    "tests/scheduler/test_blocking.py",
    "tests/scheduler/test_one_call.py",
    "tests/scheduler/test_queue_limits.py",
    "tests/scheduler/test_ranks.py",
    "tests/scheduler/test_queue_shares.py",
    "tests/scheduler/test_windows.py",
    "tests/scheduler/test_unbegun.py",
    "tests/scheduler/test_units.py",
    "tests/scheduler/test_slots.py",
    "tests/scheduler/test_each_number.py",
    "tests/scheduler/test_aging.py",
    "tests/transport/test_lending.py",
    "tests/scheduler/test_reports.py",
    "tests/scheduler/test_overrides.py",
    "tests/scheduler/test_patterns.py",
    "tests/scheduler/test_tier_rates.py",
    "tests/lua",
    "tests/contract",
    "tests/cli",
    "tests/transport/test_tenants.py",
    "tests/transport/test_basic.py",
    "tests/transport/test_lost.py",
)
#: Who survives all of them is looked at for longer, from another place: so many operations.
WALK, WALK_OPERATIONS, WALK_SEED = "test_the_reference_accepts_every_answer_", 20_000, 1_000
#: Not asked of those that are listed, for they take longer than all before them.
LAST = "tests/transport/*"
#: The package is a plugin of pytest, and this module has loaded it before pytest begins.
LOADED_BEFORE = ("-W", "ignore::pytest.PytestAssertRewriteWarning")
#: A mutant may make a test wait for what never comes.
TEST_SECONDS = 180
#: A failure is enough, it need not be made shorter; and a small crowd is a crowd.
ENVIRONMENT = {"REFERENCE_OPERATIONS": "4800", "REFERENCE_SHORTER": "0", "DISPATCH_CROWD": "500"}


def run(mutants: Connection, seed: int, directory: str, suites: Sequence[str] = SUITES) -> None:
    """Judge what comes through `mutants`, each with whether it is listed, until None comes.

    Sent back is the test that caught it or None; and at first a text, empty where all tests pass.
    """
    os.environ.update(ENVIRONMENT, REFERENCE_SEED=str(seed))
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
    options = ["-q", "-p", "no:cacheprovider", *LOADED_BEFORE]
    pytest.main([*options, *suites], plugins=[Judge(mutants, Copy(Path(directory)))])


class Judge:
    """A plugin that has a loop of its own over the tests."""

    def __init__(self, mutants: Connection, copy: Copy):
        self.mutants = mutants
        self.copy = copy
        self.tests: list[tuple[pytest.Item, set[str]]] = []
        self.failed: pytest.TestReport | None = None
        self.server: RedisServer | None = None

    def pytest_configure(self) -> None:
        # Not before: pytest warns of modules that it could not rewrite.
        from hypothesis import Phase, settings

        settings.register_profile("mutants", derandomize=True, phases=[Phase.generate])
        settings.load_profile("mutants")

    def pytest_collection_modifyitems(self, items: Sequence[pytest.Item]) -> None:
        for item in items:
            item.add_marker(pytest.mark.timeout(TEST_SECONDS), append=False)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.failed:
            self.failed = report

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
        made = yield
        if fixturedef.argname == "redis_server":
            self.server = made
        return made

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        with self.copy.in_use():
            self.tests = [(item, self.units_of(item)) for item in session.items]
            self.mutants.send(self.failed.longreprtext if self.failed else "")
            for mutant, is_listed in iter(self.mutants.recv, None):
                with self.copy.having(mutant):
                    self.mutants.send(self.who_catches(mutant.unit, is_listed))
                self.forget_libraries()
        return True

    def units_of(self, item: pytest.Item) -> set[str]:
        """Return the units that a test may run; none once a test has failed."""
        self.copy.load_anew()
        if self.failed or self.fails(item):
            return set()
        return set().union(*map(reached_by, self.copy.called))

    def forget_libraries(self) -> None:
        """Empty the server of libraries: each mutant has one of its own, of almost a megabyte."""
        if self.server and self.server.alive:
            self.server.resume()
            with self.server.client() as client:
                client.function_flush()

    def who_catches(self, unit: str, is_listed: bool) -> str | None:
        for place, (item, runs) in enumerate(self.tests):
            if unit not in runs or (is_listed and item.path.match(LAST)):
                continue
            # A listed one twice, for a busy machine may fail a test that looks at the time.
            if self.fails(item) and (not is_listed or self.fails(item)):
                # Who caught one mutant of a file catches most of the others too.
                self.tests.insert(0, self.tests.pop(place))
                return item.nodeid
        return None if is_listed else self.long_walk(unit)

    def long_walk(self, unit: str) -> str | None:
        """Let the reference judge for longer, where that may run ``unit``."""
        for item, runs in self.tests:
            if isinstance(item, pytest.Function) and item.name.startswith(WALK) and unit in runs:
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(item.module, "OPERATIONS", WALK_OPERATIONS)
                    patch.setattr(item.module, "SEED", item.module.SEED + WALK_SEED)
                    if self.fails(item):
                        return f"{item.nodeid}, longer"
        return None

    def fails(self, item: pytest.Item) -> bool:
        self.failed = None
        # The session as the next one: what lives as long as it, the server, is kept.
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=item.session)
        return self.failed is not None
