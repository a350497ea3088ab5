"""Importing the package does nothing, and what it exports is fixed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import celery_fairness
from celery_fairness import errors

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
        "FairTask",
        "Fairness",
        "FairnessError",
        "HeaderInvalid",
        "KeyInvalid",
        "KeyMissing",
        "LimiterUnavailable",
        "MessageUnreadable",
        "NotFound",
        "NotWired",
        "PolicyInvalid",
        "ProblemsError",
        "PublishFailed",
        "RateLimitDropped",
        "RateLimitExceeded",
        "RateLimitPolicy",
        "SettingsError",
        "TaskDeclarationError",
        "TenantError",
        "TenantInvalid",
        "TenantMissing",
        "Tier",
        "Unroutable",
        "__version__",
        "select_queue",
    ]
    assert dir(celery_fairness) == sorted(celery_fairness.__all__)


def test_every_error_is_exported():
    """Whatever ``delay()``, a body or the API raises can be caught by its public name."""
    raised = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.FairnessError)
    }
    assert raised <= set(celery_fairness.__all__)
    assert all(getattr(celery_fairness, name) is getattr(errors, name) for name in raised)


@pytest.mark.parametrize("name", celery_fairness.__all__)
def test_every_exported_name_is_there(name):
    assert getattr(celery_fairness, name) is not None


@pytest.mark.parametrize("name", ["Rate", "RateLimit", "fairtask", "__wrapped__"])
def test_other_names_are_not_there(name):
    with pytest.raises(AttributeError, match=f"no attribute {name!r}"):
        getattr(celery_fairness, name)
