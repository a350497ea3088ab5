"""The bodies and queries of requests, and the answers that no value of the library describes.

Invariant: a body is strict. An unknown field, a number as text and a text with NUL are rejected,
and an error names each problem.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from ninja import Query
from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    create_model,
    model_validator,
)

from celery_fairness.config.numbers import PARTITION, Count, Share, numbers_of, values_of
from celery_fairness.config.rates import MAX_RATE_LIMIT, Rate
from celery_fairness.control.key.limits_api import LONGEST_PAGE
from celery_fairness.control.key.stops import REASON_CHARACTERS
from celery_fairness.control.key.views import Pagination
from celery_fairness.control.queue.views import QueueLimit
from celery_fairness.util.value import Value
from django_celery_fairness.api.errors import NO_NUL, TIER_NAME

#: Forms of a period whose every value is 1 ms to 366 days long. A request may have other forms of
#: ISO 8601 too, such as ``P1W2D``, if the period is within these bounds.
PERIOD = (
    r"^P(?:(?:[1-9]|[1-4][0-9]|5[0-2])W"
    r"|(?:[1-9][0-9]?|[12][0-9]{2}|3[0-5][0-9]|36[0-6])D"
    r"|(?:[1-9][0-9]?D)?T(?:[1-9][0-9]{0,2}H(?:[1-9][0-9]{0,3}M)?(?:[1-9][0-9]{0,4}S)?"
    r"|[1-9][0-9]{0,4}M(?:[1-9][0-9]{0,4}S)?|[1-9][0-9]{0,6}S|(?:0|[1-9][0-9]{0,2})\.[0-9]{0,2}[1-9]S))$"
)


#: The position in a list.
PageNumber = Annotated[int, Query(ge=1, le=1_000_000)]
PageLength = Annotated[int, Query(ge=1, le=LONGEST_PAGE)]


#: The form of a time. Pydantic reads others too, such as Unix seconds.
RFC_3339 = re.compile(
    r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(?:\.\d+)?(?:[Zz]|[+-]\d\d:\d\d)", re.ASCII
)


def _rfc_3339(value: Any) -> Any:
    if not isinstance(value, str) or RFC_3339.fullmatch(value) is None:
        raise ValueError("expected a time in RFC 3339, such as 2026-11-26T12:00:00Z")
    return value


def _in_utc(value: datetime) -> datetime:
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise ValueError("expected a time in the years 1 to 9999 of UTC") from None


#: The errors of a route that reads, and of one that writes.
READ = frozenset({400, 401, 403, 404, 422, 503})
WRITE = READ | {409, 413, 415}


def _whole(value: Any) -> Any:
    # To JSON 1.0 and 1 are one number.
    return int(value) if isinstance(value, float) and value.is_integer() else value


Time = Annotated[
    AwareDatetime,
    Field(strict=False),
    AfterValidator(_in_utc),
    BeforeValidator(_rfc_3339),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
#: PostgreSQL stores no NUL.
Text = Annotated[str, Field(pattern=NO_NUL, max_length=10_000)]


class Body(BaseModel):
    """The body of a request."""

    model_config = ConfigDict(extra="forbid", strict=True)


class RateBody(Body):
    """A number of starts in a period."""

    limit: Annotated[int, Field(ge=1, le=MAX_RATE_LIMIT), BeforeValidator(_whole)]
    period: Annotated[
        str,
        WithJsonSchema(
            {
                "type": "string",
                "pattern": PERIOD,
                "description": "ISO 8601, 1 ms to 366 days, no months or years.",
            }
        ),
    ]

    @model_validator(mode="after")
    def _is_rate(self) -> RateBody:
        Rate.from_ojs(self.model_dump())
        return self


def _type_of(kind: Any) -> Any:
    """Return the type of a number in a body; None is unlimited."""
    if isinstance(kind, Share):
        return Annotated[float, Field(gt=0, le=kind.most)]
    if isinstance(kind, Count):
        # The bounds come first: behind another validator they are not in the schema.
        bounds = Field(ge=kind.least, le=kind.most)
        return Annotated[int, bounds, BeforeValidator(_whole)] | None
    return RateBody | None


def _numbers_of(holder: str, *, required: bool) -> Any:
    """Return a body with the numbers of a holder, by their names in the Open Job Spec.

    Args:
        holder: What has them.
        required: Whether a body must have each of them. If not, an absent one is the default of its
            kind.
    """
    # pydantic 2.6 takes ``...`` beside an annotated type for a default value.
    fields: dict[str, Any] = {
        number.name: (_type_of(number.kind), Field() if required else number.kind.default)
        for number in numbers_of(holder).values()
    }
    return create_model(f"NumbersOf{holder.title()}", __base__=Body, **fields)


class OverrideBody(_numbers_of("override", required=False)):  # type: ignore[misc]  # from a table
    """The numbers that replace those of a key. None is unlimited; absent fields stay as declared.

    Attributes:
        expires_at: Its end. None lasts until it is deleted.
        reason: Why, for people.
    """

    model_config = ConfigDict(
        json_schema_extra={"anyOf": [{"required": [word]} for word in numbers_of("override")]}
    )

    expires_at: Time | None = None
    reason: Annotated[Text, Field(max_length=REASON_CHARACTERS)] | None = None

    @property
    def numbers(self) -> dict[str, Any]:
        """The numbers that the body has."""
        given = self.model_dump(exclude_unset=True)
        return {word: given[word] for word in numbers_of("override") if word in given}

    @model_validator(mode="after")
    def _has_number(self) -> OverrideBody:
        if not self.numbers:
            raise ValueError(f"expected any of {', '.join(numbers_of('override'))}")
        return self


class PartitionBody(_numbers_of(PARTITION, required=False)):  # type: ignore[misc]  # as above
    """The numbers that each partition of a queue has for itself: an absent number is unlimited."""


class QueueLimitBody(_numbers_of("queue", required=False)):  # type: ignore[misc]  # as above
    """The limits of a queue: an absent number is unlimited.

    If only the queue or only its partitions have a number, the other is as the settings declare it.

    Attributes:
        partition: The numbers of each partition.
        on_limit: What happens to a task above the limit.
    """

    partition: PartitionBody | None = None

    on_limit: Literal["wait", "reschedule", "drop"] = "wait"


_QUEUE_NAMES: dict[str, Any] = {
    word: (number.kind.answer, Field(serialization_alias=number.name))
    for word, number in numbers_of("queue").items()
}


class QueueLimitState(create_model("QueueNames", __base__=QueueLimit, **_QUEUE_NAMES)):  # type: ignore[misc]  # as above
    """The limit of a queue, with the names that the Open Job Spec has for its numbers."""


class TierBody(_numbers_of("tier", required=True)):  # type: ignore[misc]  # as above
    """A tier as a whole: each field is required, because an absent one would change it unseen."""

    queue_class: Literal["priority", "default"]
    description: Text


class _Named(Value):
    name: str


class TierState(values_of("tier", _Named, absent=...)):  # type: ignore[misc]  # as above
    """A tier of the database.

    Attributes:
        published: Whether Redis has the present table of tiers.
    """

    queue_class: str
    description: str
    published: bool


class TierPage(Value):
    """One page of the tiers, by name."""

    items: tuple[TierState, ...]
    pagination: Pagination


class TenantBody(_numbers_of("tenant", required=True)):  # type: ignore[misc]  # as above
    """The tier of a tenant and numbers of its own, as a whole: an absent time is none.

    Attributes:
        valid_from: When the row begins to apply. None is at once.
        valid_until: When the row ends. None is never.
    """

    tier: Annotated[str, Field(pattern=TIER_NAME)]
    note: Text
    valid_from: Time | None = None
    valid_until: Time | None = None


class _InTier(Value):
    tenant: str
    tier: str


class TenantState(values_of("tenant", _InTier, absent=...)):  # type: ignore[misc]  # as above
    """A tenant with a row in the database. A number of its own that is None is that of its tier.

    Attributes:
        valid_from: When the row begins to apply. None is at once.
        valid_until: When the row ends. None is never. Then the tenant has the default tier.
        published: Whether Redis has the present row.
    """

    note: str
    valid_from: datetime | None
    valid_until: datetime | None
    published: bool


class TenantPage(Value):
    """One page of the tenants, by name."""

    items: tuple[TenantState, ...]
    pagination: Pagination


class Problem(Value):
    """An error.

    Attributes:
        code: For programs.
        message: For people.
        retryable: Whether the same request may succeed later.
        details: More about it, if there is more.
        request_id: The id of the request in the log of the server.
    """

    code: str
    message: str
    retryable: bool
    details: dict[str, Any] | None = None
    request_id: str


class Error(Value):
    """The answer to a request that failed."""

    error: Problem


class Implementation(Value):
    """The server."""

    name: str
    version: str
    language: str


class Manifest(Value):
    """The abilities of the server, in the form of the Open Job Spec.

    Attributes:
        capabilities: ``rate_limiting`` is true only if this installation meets RL-001 to RL-006.
        extensions: URIs of the extensions.
    """

    specversion: str
    implementation: Implementation
    protocols: tuple[str, ...]
    backend: str
    capabilities: dict[str, bool]
    extensions: tuple[str, ...]


class Health(Value):
    """The server answers.

    Attributes:
        status: ``ok``.
        time: Now, by the clock of this process.
    """

    status: str
    time: datetime
