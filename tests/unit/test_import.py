"""Importing the package does nothing, and what it exports is fixed."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest
from celery import Celery

import celery_fairness
from celery_fairness import Fairness, errors

ROOT = Path(__file__).resolve().parents[2]

LOADS_NOTHING = """
import os, sys, threading
read = []
class Watched(dict):
    def __getitem__(self, name):
        read.append(name)
        return dict.__getitem__(self, name)
os.environ = Watched(os.environ)
import celery_fairness
heavy = ("celery", "kombu", "redis", "django", "pydantic", "billiard", "vine", "opentelemetry")
loaded = sorted(name for name in heavy if name in sys.modules)
assert not loaded, loaded
assert "logging" not in sys.modules, "logging"
assert [name for name in read if "FAIRNESS" in name] == []
assert threading.active_count() == 1
"""

CONNECTS_NOTHING = """
from celery import signals
def receivers():
    return {name: len(signal.receivers or ()) for name, signal in vars(signals).items()
            if hasattr(signal, "receivers")}
before = receivers()
from celery_fairness import *
assert receivers() == before
import threading
assert threading.active_count() == 1
"""


@pytest.mark.parametrize("code", [LOADS_NOTHING, CONNECTS_NOTHING])
def test_importing_does_nothing(code):
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_what_is_exported_is_fixed():
    assert celery_fairness.__all__ == [
        "BacklogFull",
        "DeliveriesExhausted",
        "DuplicateTask",
        "FairTask",
        "Fairness",
        "FairnessError",
        "HeaderInvalid",
        "KeyInvalid",
        "KeyMissing",
        "LibraryUnusable",
        "LimiterUnavailable",
        "MessageUnreadable",
        "NotFound",
        "NotWired",
        "NotWithPartitions",
        "PolicyInvalid",
        "ProblemsError",
        "PublishFailed",
        "RateLimitDropped",
        "RateLimitExceeded",
        "RateLimitPolicy",
        "SettingsError",
        "TaskDeclarationError",
        "TaskExists",
        "TenantError",
        "TenantInvalid",
        "TenantMissing",
        "Tier",
        "Unroutable",
        "__version__",
        "select_queue",
    ]
    assert dir(celery_fairness) == sorted(celery_fairness.__all__)


#: Exceptions that the package itself catches, or that a test's own server raises.
INTERNAL = {
    "BindingsChanged",
    "LeaseEnded",
    "MessageInvalid",
    "NotAccepted",
    "NotBegun",
    "NotServed",
    "NotSentBack",
    "Parked",
    "ServerAway",
    "ServerFailed",
    "ServerNotReady",
    "SlotAway",
    "SlotMoved",
    "Unsent",
}


def exceptions_of(package):
    """Return the exceptions that any module of a package defines."""
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        try:
            module = importlib.import_module(found.name)
        except ModuleNotFoundError as error:
            # An extra is not installed.
            if error.name.partition(".")[0] not in ("textual", "opentelemetry"):
                raise
            continue
        for value in vars(module).values():
            is_error = isinstance(value, type) and issubclass(value, BaseException)
            if is_error and value.__module__ == found.name:
                yield value


def test_every_error_is_exported_under_one_root():
    """Whatever ``delay()``, a body or the API raises can be caught by its public name."""
    found = {each.__name__: each for each in exceptions_of(celery_fairness)}
    raised = {name: each for name, each in found.items() if name not in INTERNAL}
    assert raised == {name: getattr(celery_fairness, name) for name in raised}
    assert all(issubclass(each, errors.FairnessError) for each in raised.values())
    assert found.keys() >= INTERNAL


#: The public methods of ``Fairness``, and of each of its nouns.
METHODS = {
    "fairness": (
        "check",
        "close",
        "events",
        "limits",
        "of",
        "queues",
        "settings",
        "stats",
        "tasks",
        "tenants",
    ),
    "limits": (
        "clear_cool_down",
        "clear_override",
        "cool_down",
        "inspect",
        "is_known",
        "list",
        "override",
        "pause",
        "report",
        "resume",
        "used",
    ),
    "tenants": (
        "boost",
        "clear_override",
        "clear_tier",
        "inspect",
        "limit",
        "list",
        "override",
        "pause",
        "publish_tiers",
        "purge",
        "reroute",
        "resume",
        "set_tier",
    ),
    "queues": ("clear_limit", "inspect", "list", "set_limit"),
    "tasks": ("cancel", "cancel_all", "count", "dead_letters", "explain", "list", "requeue"),
    "events": ("follow", "read", "trace", "traces_until"),
    "stats": (
        "counters",
        "doctor",
        "load",
        "loads",
        "metrics",
        "minutes",
        "observed",
        "rejections",
        "status",
    ),
}


def public(value):
    return tuple(name for name in dir(value) if not name.startswith("_"))


def test_the_names_of_fairness_are_fixed():
    app = Celery("shop", broker="redis://localhost:1/0", set_as_current=False)
    fairness = Fairness(app, {})
    try:
        found = {name: public(getattr(fairness, name, fairness)) for name in METHODS}
    finally:
        fairness.close()
    assert found == METHODS


@pytest.mark.parametrize("name", celery_fairness.__all__)
def test_every_exported_name_is_there(name):
    assert getattr(celery_fairness, name) is not None


@pytest.mark.parametrize("name", ["Rate", "RateLimit", "fairtask", "__wrapped__"])
def test_other_names_are_not_there(name):
    with pytest.raises(AttributeError, match=f"no attribute {name!r}"):
        getattr(celery_fairness, name)
