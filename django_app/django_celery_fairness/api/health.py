"""The manifest, and whether the server lives and is ready."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib.metadata import version

from django.http import HttpRequest
from ninja import Router

from celery_fairness import Fairness
from celery_fairness.config.settings import Enforcement
from django_celery_fairness import wiring
from django_celery_fairness.api.auth import EXTENSIONS, access
from django_celery_fairness.api.schemas import READ, Error, Health, Implementation, Manifest

router = Router(auth=access(), tags=["server"])


@router.get("manifest", response={200: Manifest, READ: Error})
def get_manifest(request: HttpRequest) -> Manifest:
    """Return what this server can do."""
    parts = wiring.wired()
    # A gate rejects a task after its worker has taken it, so it cannot skip one (RL-004).
    limits = (
        parts is not None and parts.claims_fairly and parts.settings.enforcement is Enforcement.ON
    )
    return Manifest(
        specversion="1.0",
        implementation=Implementation(
            name="celery-fairness", version=version("celery-fairness"), language="python"
        ),
        protocols=("http",),
        backend="redis",
        capabilities={"rate_limiting": limits},
        extensions=EXTENSIONS[1:] if limits else (),
    )


@router.get("health/live", response={200: Health, READ: Error})
def get_live(request: HttpRequest) -> Health:
    """Return that this process answers; it does not look at Redis."""
    return _ok()


@router.get("health/ready", response={200: Health, READ: Error})
def get_ready(request: HttpRequest) -> Health:
    """Return that Redis answers too."""
    Fairness.of().stats.counters()
    return _ok()


def _ok() -> Health:
    return Health(status="ok", time=datetime.now(UTC))
