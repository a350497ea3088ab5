"""Tiers, tenants with their tiers, changes that are not in Redis yet, and tokens of the API.

Invariant: every bound is a constraint of the database. So no other way than the forms (a shell, a
fixture, ``queryset.update``, another program) can store a limit that the limiter would reject.

Weakness: Redis has a copy, which :mod:`.publishing` writes after the commit. For some milliseconds,
or while Redis is away, workers use the number before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator
from django.db import models, router, transaction
from django.db.models import Q
from django.db.models.lookups import LessThanOrEqual
from django.utils.translation import gettext_lazy as _

from celery_fairness.config.tenants import TENANT_BYTES, normalise
from celery_fairness.config.tiers import MAX_CONCURRENCY, MAX_WAITING, MAX_WEIGHT
from celery_fairness.errors import TenantError
from django_celery_fairness.octet_length import OctetLength
from django_celery_fairness.querysets import TenantTierQuerySet, TierQuerySet

if TYPE_CHECKING:
    from celery_fairness.config.tiers import Tier as PublishedTier

NAME_EXPECTED = _("Expected 1 to 100 letters, digits, “_” or “-”.")
CONCURRENCY_EXPECTED = _(
    "Expected a whole number from 0 (pause) to 1,000,000, or nothing (see the help text)."
)
WEIGHT_EXPECTED = _("Expected a number above 0, up to 1,000,000.")
WAITING_EXPECTED = _("Expected a whole number from 1 to 1,000,000,000, or nothing (any number).")
TOKEN_NAME_EXPECTED = _("Expected text on one line.")
TOKEN_EXISTS = _("A token of this name exists and is not revoked.")
TENANT_EXPECTED = _("Expected 1 to 200 bytes of text.")


def validate_weight(value: float) -> None:
    """Reject a weight outside its bounds, and NaN, which is never inside."""
    if not 0 < value <= MAX_WEIGHT:
        raise ValidationError(WEIGHT_EXPECTED, code="weight")


def validate_tenant(value: str) -> None:
    """Reject a text that cannot be a tenant."""
    try:
        tenant = normalise(value)
    except TenantError as error:
        raise ValidationError(str(error), code="tenant") from error
    if tenant is None:
        raise ValidationError(TENANT_EXPECTED, code="tenant")


class Tier(models.Model):
    """A plan: how many tasks each of its tenants may run at once, and may have waiting."""

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
    concurrency = models.PositiveIntegerField(
        _("tasks at once"),
        null=True,
        blank=True,
        validators=[MaxValueValidator(MAX_CONCURRENCY)],
        help_text=_(
            "How many tasks one tenant of this tier may run at the same time, for example 3. "
            "Empty is unlimited, 0 pauses every tenant of the tier."
        ),
    )
    weight = models.FloatField(
        _("weight"),
        default=1.0,
        validators=[validate_weight],
        help_text=_(
            "Share among tenants that wait, for example 2 for twice the share of a tier with 1. "
            "Above 0, up to 1,000,000."
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
    max_waiting = models.PositiveIntegerField(
        _("may wait"),
        null=True,
        blank=True,
        validators=[MinValueValidator(1), MaxValueValidator(MAX_WAITING)],
        help_text=_(
            "How many tasks of one tenant of this tier may wait on fairredis, for example 10000: "
            "over it delay() raises BacklogFull. Empty is any number."
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
                name="fairness_tier_concurrency_bounds",
                condition=Q(concurrency=None) | Q(concurrency__range=(0, MAX_CONCURRENCY)),
                violation_error_message=CONCURRENCY_EXPECTED,
            ),
            models.CheckConstraint(
                name="fairness_tier_weight_bounds",
                condition=Q(weight__gt=0, weight__lte=MAX_WEIGHT),
                violation_error_message=WEIGHT_EXPECTED,
            ),
            models.CheckConstraint(
                name="fairness_tier_max_waiting_bounds",
                condition=Q(max_waiting=None) | Q(max_waiting__range=(1, MAX_WAITING)),
                violation_error_message=WAITING_EXPECTED,
            ),
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

        return PublishedTier(
            name=self.name,
            concurrency=self.concurrency,
            weight=self.weight,
            queue_class="priority" if self.queue_class == "priority" else "default",
            max_waiting=self.max_waiting,
        )


class TenantTier(models.Model):
    """The tier of one tenant, or a number of its own within it.

    A tenant without a row has the default tier.
    """

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
    concurrency = models.PositiveIntegerField(
        _("own tasks at once"),
        null=True,
        blank=True,
        validators=[MaxValueValidator(MAX_CONCURRENCY)],
        help_text=_(
            "A number for this tenant alone in place of its tier's, for example 8. "
            "Empty uses the tier's, 0 pauses this tenant."
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
            models.CheckConstraint(
                name="fairness_tenant_concurrency_bounds",
                condition=Q(concurrency=None) | Q(concurrency__range=(0, MAX_CONCURRENCY)),
                violation_error_message=CONCURRENCY_EXPECTED,
            ),
        )

    def __str__(self) -> str:
        return self.tenant

    def save(self, *args: Any, **options: Any) -> None:
        """Save as Django does, in one transaction with its ``UnpublishedChange``."""
        alias = options.get("using") or router.db_for_write(type(self), instance=self)
        with transaction.atomic(using=alias, savepoint=False):
            super().save(*args, **options)


class UnpublishedChange(models.Model):
    """A change that is not in Redis yet.

    It is written in the transaction of the change, and removed when Redis has the change. So a
    change survives a Redis that is away and a process that dies after its commit. It names the
    changed row. A publication reads the new value from the database.
    """

    tenant = models.CharField(max_length=TENANT_BYTES, blank=True, default="")
    made_at = models.DateTimeField(auto_now_add=True)
    error = models.TextField(blank=True, default="")

    class Meta:
        """Names only: it is not in the admin."""

        verbose_name = _("unpublished change")
        verbose_name_plural = _("unpublished changes")

    def __str__(self) -> str:
        return self.tenant or "the tier table"


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
