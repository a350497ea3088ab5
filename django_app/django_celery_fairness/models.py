"""Tiers, tenants, limits of queues, overrides, unpublished changes, and tokens of the API.

Invariant: every bound is a constraint of the database. So no other way than the forms (a shell, a
fixture, ``queryset.update``, another program) can store a limit that the limiter would reject.

Weakness: Redis has a copy, which :mod:`.publishing` writes after the commit. For some milliseconds,
or while Redis is away, workers use the number before.
"""

from __future__ import annotations

from contextlib import suppress
from string import ascii_letters, digits
from typing import TYPE_CHECKING, Any, ClassVar

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.validators import RegexValidator
from django.db import models, router, transaction
from django.db.models import F, Q
from django.db.models.lookups import LessThanOrEqual
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from celery_fairness.config.limit_spec import ACTIONS
from celery_fairness.config.numbers import PARTITION, with_partition
from celery_fairness.config.queue_limits import PARKED_QUEUES, PREFIX
from celery_fairness.config.queue_policy import QUEUE_NAME, QueueNumbers, queue_key, read_queue
from celery_fairness.config.tenants import KEY_CHARACTERS, TENANT_BYTES, normalise
from celery_fairness.control.key.stops import MAX_UNIX_SECONDS, PERSON_CHARACTERS, REASON_CHARACTERS
from celery_fairness.errors import (
    FairnessError,
    LimiterUnavailable,
    PolicyInvalid,
    TenantError,
)
from django_celery_fairness import wiring
from django_celery_fairness.number_fields import (
    bounds_of,
    given_in,
    has_only,
    none_of,
    numbers_in,
    typed_in,
)
from django_celery_fairness.octet_length import OctetLength
from django_celery_fairness.querysets import (
    LimitOverrideQuerySet,
    NamedRowQuerySet,
    TenantTierQuerySet,
    TierQuerySet,
)

if TYPE_CHECKING:
    from celery_fairness.config.tiers import Tier as PublishedTier

#: Longest name of a queue.
QUEUE_BYTES = 255

NAME_EXPECTED = _("Expected 1 to 100 letters, digits, “_” or “-”.")
TOKEN_NAME_EXPECTED = _("Expected text on one line.")
TOKEN_EXISTS = _("A token of this name exists and is not revoked.")
TENANT_EXPECTED = _("Expected 1 to 200 bytes of text.")
TIME_EXPECTED = _("Expected an end after the beginning.")
QUEUE_EXPECTED = _("Expected 1 to 255 bytes of text without NUL that do not begin with “@parked:”.")
KEY_EXPECTED = _("Expected the key of a limit, such as “api.stripe.com” or “tenant:42”.")
NUMBERS_EXPECTED = _("Expected at least one number.")
REASON_EXPECTED = _("Expected at most 500 characters that say why.")
ACTION_EXPECTED = _("Expected “wait”, “reschedule” or “drop”.")


def validate_tenant(value: str) -> None:
    """Reject a text that cannot be a tenant."""
    try:
        tenant = normalise(value)
    except TenantError as error:
        raise ValidationError(str(error), code="tenant") from error
    if tenant is None:
        raise ValidationError(TENANT_EXPECTED, code="tenant")


def validate_queue(value: str) -> None:
    """Reject a text that cannot be the name of a queue."""
    # PostgreSQL stores no NUL.
    if not QUEUE_NAME.accepts(value) or len(value.encode()) > QUEUE_BYTES or "\0" in value:
        raise ValidationError(QUEUE_EXPECTED, code="queue")


def validate_key(value: str) -> None:
    """Reject a text that cannot be the key of a limit in this project."""
    from celery_fairness.control.key.inspector import typed_key

    queue = value.removeprefix(PREFIX) if value.startswith(PREFIX) else ""
    if queue and ":" not in queue:
        # Redis has the hash of some names.
        value = queue_key(queue)
    try:
        # A colon may belong to the name of a queue, and only Redis has these names.
        typed_key(value, wiring.settings_in_force(), of_all=False, patterns=True)
    except (FairnessError, ValueError) as error:
        raise ValidationError(str(error), code="key") from error


def validate_checked(field: str, queue: str) -> None:
    """Reject a queue that no worker would check."""
    from celery_fairness.control.key.queue_keys import QueueKeys

    parts = wiring.wired()
    if parts is None:
        return
    try:
        QueueKeys(parts.installation).expect_checked(queue)
    except PolicyInvalid as error:
        raise ValidationError({field: list(error.problems)}, code="queue") from error


def validate_partitioned(field: str, queue: str) -> None:
    """Reject a number of each partition of a queue whose tasks have no partitions."""
    from celery_fairness.control.key.queue_keys import QueueKeys

    parts = wiring.wired()
    if parts is None:
        return
    # Redis has what workers declare. If it is away, the publication finds the error.
    with suppress(LimiterUnavailable):
        try:
            QueueKeys(parts.installation).expect_partitioned(queue)
        except PolicyInvalid as error:
            raise ValidationError({field: list(error.problems)}, code="partition") from error


class Tier(numbers_in("tier"), models.Model):  # type: ignore[misc]  # mypy cannot read the table
    """A plan: how many tasks each of its tenants may run at once, start and have waiting."""

    class QueueClass(models.TextChoices):
        """The queue of a service for the tasks of a tier."""

        PRIORITY = "priority", _("priority")
        DEFAULT = "default", _("default")

    name = models.CharField(
        _("name"),
        max_length=100,
        unique=True,
        validators=[RegexValidator(r"\A[A-Za-z0-9_-]+\Z", NAME_EXPECTED)],
        help_text=_(
            "What settings and the resolver call this plan, for example “pro_plus”. "
            "Letters, digits, “_” and “-”. It cannot be changed later: make a new tier and move "
            "the tenants."
        ),
    )
    queue_class = models.CharField(
        _("queue class"),
        max_length=20,
        choices=QueueClass.choices,
        default=QueueClass.DEFAULT,
        help_text=_(
            "The queue of a service that tasks of this tier go to, for example “priority”: then "
            "service “analysis” uses analysis_priority."
        ),
    )
    description = models.TextField(
        _("description"),
        blank=True,
        help_text=_("For people only, for example “Paid monthly, three reports at once”."),
    )

    objects = TierQuerySet.as_manager()

    class Meta:
        """Names, order, and the bounds as constraints."""

        verbose_name = _("tier")
        verbose_name_plural = _("tiers")
        ordering = ("name",)
        constraints = (
            models.CheckConstraint(
                name="fairness_tier_name_length",
                # SQLite does not enforce the length of a text column.
                condition=~Q(name="") & Q(LessThanOrEqual(OctetLength("name"), 100)),
                violation_error_message=NAME_EXPECTED,
            ),
            models.CheckConstraint(
                name="fairness_tier_name_characters",
                condition=has_only("name", ascii_letters + digits + "_-"),
                violation_error_message=NAME_EXPECTED,
            ),
            *bounds_of("tier"),
            models.CheckConstraint(
                name="fairness_tier_queue_class_known",
                condition=Q(queue_class__in=("priority", "default")),
                violation_error_message=_("Expected “priority” or “default”."),
            ),
        )

    def __str__(self) -> str:
        return self.name

    def save(self, *args: Any, **options: Any) -> None:
        """Save as Django does, in one transaction with its ``UnpublishedChange``.

        Raises:
            ProtectedError: It was the default tier and has another name now.
        """
        alias = options.get("using") or router.db_for_write(type(self), instance=self)
        before = Tier.objects.using(alias).filter(pk=self.pk).exclude(name=self.name)
        before.refuse_default_tier()
        with transaction.atomic(using=alias, savepoint=False):
            super().save(*args, **options)

    def delete(self, *args: Any, **options: Any) -> tuple[int, dict[str, int]]:
        """Delete as Django does.

        Raises:
            ProtectedError: It is the default tier, or a tenant has it.
        """
        Tier.objects.filter(pk=self.pk).refuse_default_tier()
        return super().delete(*args, **options)

    def published(self) -> PublishedTier:
        """Return the tier in the limiter's form."""
        from celery_fairness.config.tiers import Tier as PublishedTier

        # A tier has its concurrency always, None too.
        numbers = {"concurrency": None} | given_in("tier", vars(self))
        return PublishedTier(
            name=self.name,
            queue_class="priority" if self.queue_class == "priority" else "default",
            **numbers,
        )


class NamedRow(models.Model):
    """A row that is published by its name.

    Attributes:
        kind: Its kind of ``UnpublishedChange``.
        name_field: The field with its name.
    """

    kind: ClassVar[str]
    name_field: ClassVar[str]

    class Meta:
        """A base of models, without a table."""

        abstract = True

    def __str__(self) -> str:
        return str(getattr(self, self.name_field))

    def save(self, *args: Any, **options: Any) -> None:
        """Save as Django does, in one transaction with its ``UnpublishedChange``."""
        alias = options.get("using") or router.db_for_write(type(self), instance=self)
        with transaction.atomic(using=alias, savepoint=False):
            super().save(*args, **options)


class TenantTier(numbers_in("tenant"), NamedRow):  # type: ignore[misc]  # as above
    """The tier of one tenant, or a number of its own within it, always or for a time.

    A tenant has the default tier if it has no row, or if its row is out of its time.
    """

    kind = "tenant"
    name_field = "tenant"

    tenant = models.CharField(
        _("tenant"),
        max_length=TENANT_BYTES,
        unique=True,
        validators=[validate_tenant],
        help_text=_(
            "Who tasks are charged to, written as the tasks give it: for example “42” for "
            "user_id=42. At most 200 bytes."
        ),
    )
    tier = models.ForeignKey(
        Tier,
        verbose_name=_("tier"),
        on_delete=models.PROTECT,
        related_name="tenants",
        help_text=_("The plan of this tenant, for example “pro”."),
    )
    valid_from = models.DateTimeField(
        _("valid from"),
        null=True,
        blank=True,
        help_text=_(
            "When the row begins to apply, for example the first day of a contract. Empty is at "
            "once. New tasks follow within tier_cache_seconds, waiting tasks with the next "
            "“manage.py publish”."
        ),
    )
    valid_until = models.DateTimeField(
        _("valid until"),
        null=True,
        blank=True,
        help_text=_(
            "When the row ends, for example the last day of a trial. Empty is never. After that "
            "the tenant has the default tier, also while this site is down."
        ),
    )
    note = models.TextField(
        _("note"),
        blank=True,
        help_text=_("Why, for people only, for example “8 until the migration of May is done”."),
    )

    objects = TenantTierQuerySet.as_manager()

    class Meta:
        """Names, order, and the bounds as constraints."""

        verbose_name = _("tenant's tier")
        verbose_name_plural = _("tenants' tiers")
        ordering = ("tenant",)
        constraints = (
            models.CheckConstraint(
                name="fairness_tenant_not_empty",
                condition=~Q(tenant=""),
                violation_error_message=TENANT_EXPECTED,
            ),
            models.CheckConstraint(
                name="fairness_tenant_bytes",
                condition=LessThanOrEqual(OctetLength("tenant"), TENANT_BYTES),
                violation_error_message=TENANT_EXPECTED,
            ),
            *bounds_of("tenant"),
            models.CheckConstraint(
                name="fairness_tenant_time_order",
                condition=Q(valid_from=None)
                | Q(valid_until=None)
                | Q(valid_from__lt=F("valid_until")),
                violation_error_message=TIME_EXPECTED,
            ),
        )


class QueueLimit(numbers_in("queue"), numbers_in(PARTITION), NamedRow):  # type: ignore[misc]  # as above
    """The limits of a queue and of its partitions. They replace those of the settings."""

    kind = "queue"
    name_field = "queue"

    queue = models.CharField(
        _("queue"),
        max_length=QUEUE_BYTES,
        unique=True,
        validators=[validate_queue],
        help_text=_("The name of the queue, for example “emails”. At most 255 bytes."),
    )
    on_limit = models.CharField(
        _("over the limit"),
        max_length=20,
        choices=[(action, action) for action in ACTIONS],
        default="wait",
        help_text=_(
            "What happens to a task over the limit, for example “wait”. “reschedule” tries it "
            "again later, “drop” ends it without a run."
        ),
    )
    note = models.TextField(
        _("note"),
        blank=True,
        help_text=_("Why, for people only, for example “the mail server allows 20 connections”."),
    )

    objects = NamedRowQuerySet["QueueLimit"].as_manager()

    class Meta:
        """Names, order, and the bounds as constraints."""

        verbose_name = _("limit of a queue")
        verbose_name_plural = _("limits of queues")
        ordering = ("queue",)
        constraints = (
            models.CheckConstraint(
                name="fairness_queue_name",
                condition=~Q(queue="")
                & ~Q(queue__startswith=PARKED_QUEUES)
                & Q(LessThanOrEqual(OctetLength("queue"), QUEUE_BYTES)),
                violation_error_message=QUEUE_EXPECTED,
            ),
            *bounds_of("queue"),
            *bounds_of(PARTITION),
            models.CheckConstraint(
                name="fairness_queue_on_limit_known",
                condition=Q(on_limit__in=ACTIONS),
                violation_error_message=ACTION_EXPECTED,
            ),
        )

    def clean(self) -> None:
        """Reject a new row of a queue that no worker would check, and numbers of no partition."""
        # The form of a saved row has no field for its name, so it could not show this.
        if self._state.adding:
            validate_checked("queue", self.queue)
        for column in given_in(PARTITION, vars(self)):
            validate_partitioned(column, self.queue)

    def given(self) -> dict[str, Any]:
        """Return the limits as ``fairness.queues.set_limit`` takes them."""
        columns = given_in("queue", vars(self)) | given_in(PARTITION, vars(self))
        return {**with_partition(columns), "on_limit": self.on_limit}

    def numbers(self) -> QueueNumbers:
        """Return the limits in the limiter's form.

        Raises:
            PolicyInvalid: A number is invalid.
        """
        return read_queue(self.given())


class LimitOverride(numbers_in("override"), NamedRow):  # type: ignore[misc]  # as above
    """Numbers in place of a key's own, for a time or until the row is deleted."""

    kind = "override"
    name_field = "key"

    key = models.CharField(
        _("key"),
        max_length=KEY_CHARACTERS,
        unique=True,
        validators=[validate_key],
        help_text=_(
            "Whose numbers: the key of a limit, for example “api.stripe.com”, of a queue "
            "(“queue:emails”) or of a tenant (“tenant:42”). “api.*” is each key that begins with "
            "“api.”."
        ),
    )
    ends_at = models.DateTimeField(
        _("ends at"),
        null=True,
        blank=True,
        help_text=_(
            "When the key’s own numbers hold again, for example the end of a sale. Empty is when "
            "this row is deleted."
        ),
    )
    reason = models.CharField(
        _("reason"),
        max_length=REASON_CHARACTERS,
        blank=True,
        default="",
        help_text=_("Why, for example “import of the new customer”. Commands and events show it."),
    )
    author = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        verbose_name=_("author"),
        null=True,
        blank=True,
        editable=False,
        on_delete=models.SET_NULL,
        related_name="+",
        help_text=_("Who saved it last, for example “ada”. Empty if a program did."),
    )
    author_name = models.CharField(
        _("author"),
        max_length=PERSON_CHARACTERS,
        blank=True,
        default="",
        editable=False,
        help_text=_("Who saved it last, for example “ada” or “token deploy”."),
    )

    objects = LimitOverrideQuerySet.as_manager()

    class Meta:
        """Names, order, and the bounds as constraints."""

        verbose_name = _("override")
        verbose_name_plural = _("overrides")
        ordering = ("key",)
        constraints = (
            models.CheckConstraint(
                name="fairness_override_key",
                condition=~Q(key="") & Q(LessThanOrEqual(OctetLength("key"), KEY_CHARACTERS)),
                violation_error_message=KEY_EXPECTED,
            ),
            *bounds_of("override"),
            models.CheckConstraint(
                name="fairness_override_has_a_number",
                condition=~Q(**none_of("override")),
                violation_error_message=NUMBERS_EXPECTED,
            ),
            models.CheckConstraint(
                name="fairness_override_reason",
                condition=LessThanOrEqual(OctetLength("reason"), 4 * REASON_CHARACTERS),
                violation_error_message=REASON_EXPECTED,
            ),
        )

    def clean(self) -> None:
        """Reject a new override that has ended."""
        if self._state.adding and self.has_ended:
            text = _("Expected a time to come, got one that is past: %(time)s.")
            raise ValidationError({"ends_at": text % {"time": self.ends_at}}, code="past")
        if self.ends_at is not None and self.ends_at.timestamp() >= MAX_UNIX_SECONDS:
            # Redis would reject it, so the row could never be published.
            text = _("Expected a time before the year 5138, got: %(time)s.")
            raise ValidationError({"ends_at": text % {"time": self.ends_at}}, code="far")
        queue = self.key.removeprefix(PREFIX) if self.key.startswith(PREFIX) else ""
        if self._state.adding and queue and ":" not in queue:
            validate_checked("key", queue)

    def validate_unique(self, exclude: Any = None) -> None:
        """Reject a key that has a row in the same form, or in another one."""
        super().validate_unique(exclude)
        if "key" not in (exclude or ()):
            self.expect_one_form()

    def expect_one_form(self, using: str | None = None) -> None:
        """Reject a key that has a row in another form. Every save calls this (receivers).

        Redis has one override for both. So the end of one row would end the other's.

        Args:
            using: The database. None is the one for reading this row.

        Raises:
            ValidationError: The key has such a row.
        """
        others = LimitOverride.objects.using(using).other_forms(self.key)
        others = [each for each in others if each.pk != self.pk]
        if others:
            text = _("Expected a key without an override, got that of: %(key)s.")
            raise ValidationError({"key": text % {"key": others[0].key}}, code="unique")

    def save(self, *args: Any, **options: Any) -> None:
        """Save as every row is saved, with the name of the author."""
        if not self.author_name and self.author is not None:
            self.author_name = self.author.get_username()[:PERSON_CHARACTERS]
        super().save(*args, **options)

    @property
    def has_ended(self) -> bool:
        """Whether its time is over."""
        return self.ends_at is not None and self.ends_at <= timezone.now()

    def numbers(self) -> dict[str, Any]:
        """Return the numbers that it changes, in the limiter's form; None is unlimited.

        Raises:
            PolicyInvalid: A number is invalid.
        """
        return typed_in(vars(self))


class UnpublishedChange(models.Model):
    """A change that is not in Redis yet.

    It is written in the transaction of the change, and removed when Redis has the change. So a
    change survives a Redis that is away and a process that dies after its commit. It names the
    changed row. A publication reads the new value from the database.
    """

    class Kind(models.TextChoices):
        """The kind of the row. The tier table is published as a whole, so it has no name."""

        TIERS = "tiers", _("tiers")
        TENANT = "tenant", _("tenant")
        QUEUE = "queue", _("queue")
        OVERRIDE = "override", _("override")

    kind = models.CharField(max_length=20, choices=Kind.choices)
    name = models.CharField(max_length=KEY_CHARACTERS, blank=True, default="")
    made_at = models.DateTimeField(auto_now_add=True)
    error = models.TextField(blank=True, default="")

    class Meta:
        """Names only: it is not in the admin."""

        verbose_name = _("unpublished change")
        verbose_name_plural = _("unpublished changes")

    def __str__(self) -> str:
        return f"{self.kind} {self.name}".strip()


class ApiToken(models.Model):
    """A token of the HTTP API. It is shown once, when it is made; the row has its hash."""

    class Scope(models.TextChoices):
        """The actions that a token allows."""

        READ = "read", _("read")
        WRITE = "write", _("read and write")

    name = models.CharField(
        _("name"),
        max_length=100,
        validators=[RegexValidator(r"\A[^\x00-\x1f\x7f]+\Z", TOKEN_NAME_EXPECTED)],
        help_text=_("Who uses it, for example “deploy of the shop”."),
    )
    scope = models.CharField(
        _("scope"),
        max_length=10,
        choices=Scope.choices,
        default=Scope.READ,
        help_text=_("“read” changes nothing."),
    )
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        verbose_name=_("owner"),
        null=True,
        blank=True,
        on_delete=models.CASCADE,
        related_name="+",
        help_text=_("The token may do no more than this user."),
    )
    prefix = models.CharField(_("begins with"), max_length=8, unique=True, editable=False)
    digest = models.CharField(max_length=64, editable=False)
    created_at = models.DateTimeField(_("made"), auto_now_add=True)
    last_used_at = models.DateTimeField(_("last used"), null=True, editable=False)
    revoked_at = models.DateTimeField(_("revoked"), null=True, editable=False)

    class Meta:
        """Names, order, and that one name is one token in use."""

        verbose_name = _("API token")
        verbose_name_plural = _("API tokens")
        ordering = ("name", "pk")
        constraints = (
            models.UniqueConstraint(
                name="fairness_token_name_in_use",
                fields=["name"],
                condition=Q(revoked_at=None),
                violation_error_message=TOKEN_EXISTS,
            ),
            models.CheckConstraint(
                name="fairness_token_scope_known", condition=Q(scope__in=("read", "write"))
            ),
        )

    def __str__(self) -> str:
        return self.name

    @property
    def may_write(self) -> bool:
        """Whether its scope has writing."""
        return self.scope == self.Scope.WRITE


class NoRows(models.Manager["models.Model"]):
    """No rows, without a query: so ``dumpdata`` passes over a model that has no table."""

    def get_queryset(self) -> models.QuerySet[models.Model]:
        """Return no row."""
        return super().get_queryset().none()


class RedisPage(models.Model):
    """A page of the admin about what is in Redis. It has permissions and no table.

    So the admin lists the page, groups can be granted it, and the history names its changes.
    """

    objects = NoRows()

    class Meta:
        """No table."""

        abstract = True
        managed = False
        base_manager_name = "objects"


class Dashboard(RedisPage):
    """The dashboard."""

    class Meta(RedisPage.Meta):
        """Names, and the permission to view it."""

        default_permissions = ("view",)
        verbose_name = _("dashboard")
        verbose_name_plural = _("dashboard")


class Tenant(RedisPage):
    """A tenant with tasks in Redis, with or without a row of its own."""

    key = models.TextField(primary_key=True)

    class Meta(RedisPage.Meta):
        """Names, and the permissions."""

        default_permissions = ("view", "change")
        verbose_name = _("tenant")
        verbose_name_plural = _("tenants")

    def __str__(self) -> str:
        return self.key


class LimitKey(RedisPage):
    """A key that limits count by: a tenant, a queue, or a key of a policy."""

    key = models.TextField(primary_key=True)

    class Meta(RedisPage.Meta):
        """Names, and the permissions."""

        default_permissions = ("view", "change")
        verbose_name = _("limit by key")
        verbose_name_plural = _("limits by key")

    def __str__(self) -> str:
        return self.key


class Queue(RedisPage):
    """A queue. Its limit is a ``queue:`` key."""

    name = models.TextField(primary_key=True)

    class Meta(RedisPage.Meta):
        """Names, and the permission to view it."""

        default_permissions = ("view",)
        verbose_name = _("queue")
        verbose_name_plural = _("queues")

    def __str__(self) -> str:
        return self.name


class Task(RedisPage):
    """A task that waits, runs, or is a dead letter."""

    task_id = models.TextField(primary_key=True)

    class Meta(RedisPage.Meta):
        """Names, and the permissions."""

        default_permissions = ("view", "change")
        verbose_name = _("task")
        verbose_name_plural = _("task search")

    def __str__(self) -> str:
        return self.task_id


class DeadLetter(RedisPage):
    """A task that is not started again, until somebody requeues it."""

    task_id = models.TextField(primary_key=True)

    class Meta(RedisPage.Meta):
        """Names, and the permissions."""

        default_permissions = ("view", "change")
        verbose_name = _("dead letter")
        verbose_name_plural = _("dead letters")

    def __str__(self) -> str:
        return self.task_id
