"""The ways to run Celery's suite, and the tests that do not pass in them."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: The variables by which a run of pytest knows its mode, whether it is the quick one, and where to
#: write what came out.
MODE_VARIABLE, QUICK_VARIABLE, REPORT_VARIABLE = "FOREIGN_MODE", "FOREIGN_QUICK", "FOREIGN_REPORT"

#: Every task belongs to one tenant, which runs one task at a time.
_ONE_TENANT = {"no_tenant": "shared", "tiers": {"free": {"concurrency": 1}}}
#: A rejected task of the gate comes back soon: the tests wait for ten seconds at most.
_SOON = {"snooze_seconds": 0.1, "snooze_jitter_seconds": 0.1}


@dataclass(frozen=True)
class Mode:
    """One way to run the suite.

    Attributes:
        scheme: The broker's.
        settings: ``app.conf.fairness``; None: plain Celery, without this package.
        fair_tasks: Whether every task of the app is a FairTask.
        concurrency: Processes of the worker's pool; Celery's suite has 1.
        rejects: Whether limits are expected to reject attempts.
    """

    scheme: str = "redis"
    settings: Mapping[str, Any] | None = field(default_factory=dict)
    fair_tasks: bool = False
    concurrency: int = 1
    rejects: bool = False


MODES = {
    "stock": Mode(settings=None),
    "fairredis": Mode("fairredis"),
    "faircluster": Mode("faircluster"),
    "gate": Mode(fair_tasks=True),
    "fairredis-limit-1": Mode("fairredis", _ONE_TENANT, True, concurrency=3, rejects=True),
    "gate-limit-1": Mode("redis", {**_ONE_TENANT, **_SOON}, True, concurrency=3, rejects=True),
}


def current_mode() -> Mode:
    """Return the mode of this run."""
    return MODES[os.environ[MODE_VARIABLE]]


@dataclass(frozen=True)
class Listed:
    """A test, or a whole file, that does not pass, and why.

    Attributes:
        test: Its pytest id; a prefix of it up to ``::`` or ``[`` stands for all below.
        reason: Why; one sentence.
        modes: In which modes; all where the list says nothing.
        sometimes: Whether it passes at other times; else a pass is a mistake of the list.
        left_out: Whether it is not run at all.
        slow: Whether only the quick run leaves it out.
    """

    test: str
    reason: str
    modes: tuple[str, ...] = tuple(MODES)
    sometimes: bool = False
    left_out: bool = False
    slow: bool = False

    def names(self, nodeid: str) -> bool:
        """Say whether it is, or is above, the test of this id."""
        return nodeid == self.test or nodeid.startswith((f"{self.test}::", f"{self.test}["))


def read_exceptions() -> list[Listed]:
    """Return exceptions.toml."""
    text = (Path(__file__).parent / "exceptions.toml").read_text()
    entries = tomllib.loads(text)["exception"]
    return [Listed(**{**each, "modes": tuple(each.get("modes", MODES))}) for each in entries]
