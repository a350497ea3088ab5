"""Fair shares for the tenants of a Celery installation.

::

    from celery import Celery
    from celery_fairness import Fairness, FairTask

    app = Celery("shop", broker="redis://localhost:6379/0")
    fairness = Fairness(app)

    @app.task(base=FairTask, tenant="user_id", service="analysis")
    def analyze(repository, user_id=None): ...

Importing the package opens no connection, connects no signal and reads no environment. A name is
loaded when it is first used. The import puts ``fairredis://`` into kombu's table of transports, and
does not load kombu.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from celery_fairness.transport import register_with_kombu

if TYPE_CHECKING:
    from celery_fairness.app.fairness import Fairness
    from celery_fairness.app.task import FairTask
    from celery_fairness.config.policy import RateLimitPolicy
    from celery_fairness.config.tiers import Tier, select_queue
    from celery_fairness.errors import (
        BacklogFull,
        DeliveriesExhausted,
        DuplicateTask,
        FairnessError,
        HeaderInvalid,
        KeyInvalid,
        KeyMissing,
        LimiterUnavailable,
        MessageUnreadable,
        NotFound,
        NotWired,
        NotWithPartitions,
        PolicyInvalid,
        ProblemsError,
        PublishFailed,
        RateLimitDropped,
        RateLimitExceeded,
        SettingsError,
        TaskDeclarationError,
        TaskExists,
        TenantError,
        TenantInvalid,
        TenantMissing,
        Unroutable,
    )
    from celery_fairness.store.library import LibraryUnusable

__version__ = "0.1.0"

__all__ = [
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

#: The modules of the names that are not in ``celery_fairness.errors``.
_HOMES = {
    "FairTask": "celery_fairness.app.task",
    "Fairness": "celery_fairness.app.fairness",
    "LibraryUnusable": "celery_fairness.store.library",
    "RateLimitPolicy": "celery_fairness.config.policy",
    "Tier": "celery_fairness.config.tiers",
    "select_queue": "celery_fairness.config.tiers",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES.get(name, "celery_fairness.errors")), name)


def __dir__() -> list[str]:
    return sorted(__all__)


register_with_kombu()
