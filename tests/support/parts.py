"""The parts of an app, for tests that look behind ``Fairness``."""

from __future__ import annotations

from celery_fairness import Fairness
from celery_fairness.app.parts import Parts


def parts_of(fairness: Fairness) -> Parts:
    """Return the parts that a ``Fairness`` has made."""
    return fairness._parts
