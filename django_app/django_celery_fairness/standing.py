"""Problems of the set-up for the banner of an admin page, each with its next step.

Invariant: every finding has a next step, and none shows a password.

Weakness: the findings are those of this process. A worker with other variables may enforce limits
even if this process reports that nothing does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from celery_fairness.errors import SettingsError
from django_celery_fairness import publishing, wiring
from django_celery_fairness.live_counts import LiveCounts


@dataclass(frozen=True, slots=True)
class Finding:
    """One reason why the numbers of the page are not in force."""

    level: Literal["warning", "error"]
    text: str


def findings(counts: LiveCounts) -> list[Finding]:
    """Return the findings, the worst first.

    Args:
        counts: The page's calls to Redis. One more call is made here to see whether Redis answers.
    """
    found = _wiring()
    if wiring.wired() is not None and counts.problem is None:
        counts.rejections()
    if counts.problem is not None:
        found.append(
            Finding("error", _("Running counts are unknown: %(why)s") % {"why": counts.problem})
        )
    return [*found, *_unpublished(say_why=counts.problem is None)]


def _wiring() -> list[Finding]:
    if wiring.wired() is None:
        return [
            Finding(
                "error",
                _(
                    "Fairness is not wired in this process: workers do not use what is saved here. "
                    "Add “fairness = Fairness(app)” where the Celery app is made, and import that "
                    "module in the project’s __init__.py."
                ),
            )
        ]
    try:
        enabled = wiring.settings_in_force().enabled
    except SettingsError as error:
        return [Finding("error", str(error))]
    if enabled == "observe":
        text = _(
            "Limits are only observed, not enforced (enabled = “observe”). "
            "The dashboard shows what they would have rejected. When that is what you want, set it "
            "to true in CELERY_FAIRNESS or FAIRNESS_ENABLED and restart."
        )
    elif not enabled:
        text = _(
            "Limits are not enforced (enabled = false). "
            "Set it to true in CELERY_FAIRNESS or FAIRNESS_ENABLED and restart."
        )
    else:
        return []
    return [Finding("warning", text)]


def _unpublished(*, say_why: bool) -> list[Finding]:
    changes = publishing.unpublished()
    count = changes.count()
    last = changes.last()
    if last is None:
        return []
    text = ngettext(
        "%(count)d saved change has not reached Redis, so workers still use the number before.",
        "%(count)d saved changes have not reached Redis, so workers still use the numbers before.",
        count,
    ) % {"count": count}
    step = _(
        "Start Redis, or correct the row. Then press “Publish to Redis now” above the list, or run "
        "“manage.py publish”."
    )
    why = f"({last.error})" if last.error and say_why else ""
    return [Finding("warning", " ".join(filter(None, (text, why, step))))]
