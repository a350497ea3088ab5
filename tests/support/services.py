"""Which outside services the tests ran on: counted, told, and demanded in CI.

Invariant: a run of the whole suite in CI (variable CI) is red when a service had no test that ran,
so that a suite which skips everything is never green.

Weakness: what counts is the marker; a test that carries one and talks to nobody counts too.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest

#: Marker, and the fixtures whose use puts it on a test.
SERVICES: dict[str, tuple[str, ...]] = {
    "redis": ("redis_server",),
    "rabbitmq": ("rabbit_server",),
    "postgres": ("postgres_server",),
    "browser": (),
}
#: Property of a test's report: what it ran on.
SERVICE = "service"


def in_ci() -> bool:
    """Whether this run must not skip what is missing."""
    return os.environ.get("CI", "").lower() not in ("", "0", "false", "no")


#: A test that takes long, and whose claim another test makes for most of the code.
only_in_ci = pytest.mark.skipif(not in_ci(), reason="takes long; .ci/run runs it (CI=1)")


def and_in_ci(here: Sequence[Any], *others: Any) -> list[Any]:
    """Return the values of a parameter: ``here``, and in CI the others too."""
    return [*here, *(pytest.param(each, marks=only_in_ci) for each in others)]


def examples(count: int) -> int:
    """Return how many random values a test tries: a fifth of them outside CI."""
    return count if in_ci() else count // 5


def missing(reason: str) -> NoReturn:
    """Skip the test on a laptop, fail it in CI."""
    if in_ci():
        pytest.fail(f"{reason}; CI is set, so this is a failure", pytrace=False)
    pytest.skip(reason)


class ServiceCount:
    """Counts the tests that ran on each service."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._ran: Counter[str] = Counter()

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: Sequence[pytest.Item]) -> None:
        """Mark every test by the servers it asks for, before -m chooses."""
        for item in items:
            asked = getattr(item, "fixturenames", ())
            for marker, fixtures in SERVICES.items():
                if any(fixture in asked for fixture in fixtures):
                    item.add_marker(marker)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Write on the report what its test ran on: reports go to the process that counts."""
        report = yield
        ran_on = [name for name in SERVICES if item.get_closest_marker(name)]
        report.user_properties += [(SERVICE, name) for name in ran_on]
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count what ran, passed or not."""
        if report.when == "call" and not report.skipped:
            ran_on = [str(value) for name, value in report.user_properties if name == SERVICE]
            self._ran.update(ran_on)

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Make the run red where CI demands more."""
        if self._unserved() and exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Tell the counts in one line, and what is missing in another."""
        counts = ", ".join(f"{name} {self._ran[name]} tests" for name in SERVICES)
        terminalreporter.write_line(f"services: {counts}")
        unserved = self._unserved()
        if unserved:
            terminalreporter.write_line(
                f"services: no test ran on {', '.join(unserved)}; in CI each must have one",
                red=True,
            )

    def _unserved(self) -> list[str]:
        if not in_ci() or not self._whole_suite():
            return []
        return [name for name in SERVICES if not self._ran[name]]

    def _whole_suite(self) -> bool:
        """Whether all of tests/ was asked for, nothing chosen and nothing left out."""
        options = self._config.option
        chosen = (
            options.keyword
            or options.markexpr
            or getattr(options, "deselect", None)
            or getattr(options, "lf", False)
            or getattr(options, "ignore", None)
            or options.collectonly
        )
        here = self._config.invocation_params.dir
        suite = self._config.rootpath / "tests"
        return not chosen and any(
            (here / Path(argument)).resolve() == suite for argument in self._config.args
        )
