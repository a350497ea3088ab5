"""Events, polled page by page, and statistics."""

from __future__ import annotations

from typing import Annotated

from django.http import HttpRequest
from ninja import Query, Router
from pydantic import AfterValidator, WithJsonSchema

from celery_fairness import Fairness
from celery_fairness.control.health.event_types import TYPES, WATCHED, EventPage, check_types
from celery_fairness.control.health.events_api import LONGEST_PAGE
from celery_fairness.control.health.stats_api import KEPT
from celery_fairness.control.health.views import Minute, Rejections, Status
from django_celery_fairness.api.auth import access
from django_celery_fairness.api.errors import EVENT_ID
from django_celery_fairness.api.schemas import READ, Error
from django_celery_fairness.permissions import Action

router = Router(auth=access(Action.SEE_DASHBOARD))


def _names(watched: bool) -> str:
    some = (name for name in TYPES if (name in WATCHED) is watched)
    either = "|".join(name.replace(".", r"\.") for name in some)
    return f"(?:{either})(?:,(?:{either}))*"


def _known(types: str) -> str:
    check_types(types.split(","))
    return types


#: Names of types. The error names the types, and the pattern is for the document.
Types = Annotated[
    str,
    AfterValidator(_known),
    WithJsonSchema(
        {"type": "string", "pattern": rf"^(?:{_names(watched=False)}|{_names(watched=True)})$"}
    ),
]


@router.get("events", response={200: EventPage, READ: Error}, tags=["events"])
def poll_events(
    request: HttpRequest,
    after: Annotated[str | None, Query(pattern=EVENT_ID)] = None,
    types: Annotated[Types | None, Query()] = None,
    limit: Annotated[int, Query(ge=1, le=LONGEST_PAGE)] = 100,
) -> EventPage:
    """Return events after one, the oldest first; ``cursor`` is ``after`` of the next poll.

    ``types`` are names with commas between. The events of a trace, ``task.…``, go alone.
    """
    names = None if types is None else types.split(",")
    return Fairness.of().events.read(after=after, types=names, limit=limit)


@router.get("stats", response={200: Status, READ: Error}, tags=["statistics"])
def get_status(request: HttpRequest) -> Status:
    """Return the installation at a glance: queues, leases, tiers, workers, counters."""
    return Fairness.of().stats.status()


@router.get("stats/minutes", response={200: list[Minute], READ: Error}, tags=["statistics"])
def get_minutes(
    request: HttpRequest,
    last: Annotated[int, Query(ge=1, le=KEPT)] = 60,
) -> list[Minute]:
    """Return starts, waits and rejections in each of the last minutes, the oldest first."""
    return list(Fairness.of().stats.minutes(last))


@router.get("stats/rejections", response={200: Rejections, READ: Error}, tags=["statistics"])
def get_rejections(request: HttpRequest) -> Rejections:
    """Return how often limits rejected a start, by tier and by key."""
    return Fairness.of().stats.rejections()
