"""The tables, with every bound as a constraint."""

import django.core.validators
import django.db.models.deletion
import django.db.models.lookups
from django.conf import settings
from django.db import migrations, models

import django_celery_fairness.models
import django_celery_fairness.number_fields
import django_celery_fairness.octet_length


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="Dashboard",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
            ],
            options={
                "verbose_name": "dashboard",
                "verbose_name_plural": "dashboard",
                "abstract": False,
                "managed": False,
                "default_permissions": ("view",),
                "base_manager_name": "objects",
            },
        ),
        migrations.CreateModel(
            name="DeadLetter",
            fields=[
                ("task_id", models.TextField(primary_key=True, serialize=False)),
            ],
            options={
                "verbose_name": "dead letter",
                "verbose_name_plural": "dead letters",
                "abstract": False,
                "managed": False,
                "default_permissions": ("view", "change"),
                "base_manager_name": "objects",
            },
        ),
        migrations.CreateModel(
            name="LimitKey",
            fields=[
                ("key", models.TextField(primary_key=True, serialize=False)),
            ],
            options={
                "verbose_name": "limit by key",
                "verbose_name_plural": "limits by key",
                "abstract": False,
                "managed": False,
                "default_permissions": ("view", "change"),
                "base_manager_name": "objects",
            },
        ),
        migrations.CreateModel(
            name="Queue",
            fields=[
                ("name", models.TextField(primary_key=True, serialize=False)),
            ],
            options={
                "verbose_name": "queue",
                "verbose_name_plural": "queues",
                "abstract": False,
                "managed": False,
                "default_permissions": ("view",),
                "base_manager_name": "objects",
            },
        ),
        migrations.CreateModel(
            name="Tenant",
            fields=[
                ("key", models.TextField(primary_key=True, serialize=False)),
            ],
            options={
                "verbose_name": "tenant",
                "verbose_name_plural": "tenants",
                "abstract": False,
                "managed": False,
                "default_permissions": ("view", "change"),
                "base_manager_name": "objects",
            },
        ),
        migrations.CreateModel(
            name="Task",
            fields=[
                ("task_id", models.TextField(primary_key=True, serialize=False)),
            ],
            options={
                "verbose_name": "task",
                "verbose_name_plural": "task search",
                "abstract": False,
                "managed": False,
                "default_permissions": ("view", "change"),
                "base_manager_name": "objects",
            },
        ),
        migrations.CreateModel(
            name="UnpublishedChange",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("tiers", "tiers"),
                            ("tenant", "tenant"),
                            ("queue", "queue"),
                            ("override", "override"),
                        ],
                        max_length=20,
                    ),
                ),
                ("name", models.CharField(blank=True, default="", max_length=255)),
                ("made_at", models.DateTimeField(auto_now_add=True)),
                ("error", models.TextField(blank=True, default="")),
            ],
            options={
                "verbose_name": "unpublished change",
                "verbose_name_plural": "unpublished changes",
            },
        ),
        migrations.CreateModel(
            name="QueueLimit",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "queue",
                    models.CharField(
                        help_text="The name of the queue, for example “emails”. At most 255 bytes.",
                        max_length=255,
                        unique=True,
                        validators=[django_celery_fairness.models.validate_queue],
                        verbose_name="queue",
                    ),
                ),
                (
                    "global_limit",
                    models.PositiveIntegerField(
                        blank=True,
                        help_text="How many tasks of the queue may run at once in all workers, for example 20. Empty is unlimited, 0 pauses the queue.",
                        null=True,
                        validators=[django.core.validators.MaxValueValidator(1000000)],
                        verbose_name="at once in all",
                    ),
                ),
                (
                    "local_limit",
                    models.PositiveIntegerField(
                        blank=True,
                        help_text="How many of them may run at once in one worker, for example 4. Empty is unlimited, 0 pauses the queue. The smaller of both numbers holds.",
                        null=True,
                        validators=[django.core.validators.MaxValueValidator(1000000)],
                        verbose_name="at once in one worker",
                    ),
                ),
                (
                    "rate",
                    models.CharField(
                        blank=True,
                        default="",
                        help_text="How many may start in any period, for example “100/m”, “5/s” or “1000/PT24H”. Empty is any number.",
                        max_length=50,
                        validators=[django_celery_fairness.number_fields.RateText(unlimited=False)],
                        verbose_name="rate",
                    ),
                ),
                (
                    "throttle",
                    models.CharField(
                        blank=True,
                        default="",
                        help_text="The same, but evenly spaced: for example “60/m” is one start a second.",
                        max_length=50,
                        validators=[django_celery_fairness.number_fields.RateText(unlimited=False)],
                        verbose_name="throttle",
                    ),
                ),
                (
                    "on_limit",
                    models.CharField(
                        choices=[("wait", "wait"), ("reschedule", "reschedule"), ("drop", "drop")],
                        default="wait",
                        help_text="What happens to a task over the limit, for example “wait”. “reschedule” tries it again later, “drop” ends it without a run.",
                        max_length=20,
                        verbose_name="over the limit",
                    ),
                ),
                (
                    "note",
                    models.TextField(
                        blank=True,
                        help_text="Why, for people only, for example “the mail server allows 20 connections”.",
                        verbose_name="note",
                    ),
                ),
            ],
            options={
                "verbose_name": "limit of a queue",
                "verbose_name_plural": "limits of queues",
                "ordering": ("queue",),
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("queue", ""), _negated=True),
                            models.Q(("queue__startswith", "@parked:"), _negated=True),
                            django.db.models.lookups.LessThanOrEqual(
                                django_celery_fairness.octet_length.OctetLength("queue"), 255
                            ),
                        ),
                        name="fairness_queue_name",
                        violation_error_message="Expected 1 to 255 bytes of text without NUL that do not begin with “@parked:”.",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("global_limit", None),
                            ("global_limit__range", (0, 1000000)),
                            _connector="OR",
                        ),
                        name="fairness_queue_global_limit_bounds",
                        violation_error_message="Expected a whole number from 0 (pause) to 1,000,000, or nothing (see the help text).",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("local_limit", None),
                            ("local_limit__range", (0, 1000000)),
                            _connector="OR",
                        ),
                        name="fairness_queue_local_limit_bounds",
                        violation_error_message="Expected a whole number from 0 (pause) to 1,000,000, or nothing (see the help text).",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("rate__in", ("",)),
                            models.Q(
                                ("rate__contains", "/"),
                                django.db.models.lookups.LessThanOrEqual(
                                    django_celery_fairness.octet_length.OctetLength("rate"), 50
                                ),
                            ),
                            _connector="OR",
                        ),
                        name="fairness_queue_rate",
                        violation_error_message="Expected a rate such as “100/m” or “100/PT1M”, or nothing.",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("throttle__in", ("",)),
                            models.Q(
                                ("throttle__contains", "/"),
                                django.db.models.lookups.LessThanOrEqual(
                                    django_celery_fairness.octet_length.OctetLength("throttle"), 50
                                ),
                            ),
                            _connector="OR",
                        ),
                        name="fairness_queue_throttle",
                        violation_error_message="Expected a rate such as “100/m” or “100/PT1M”, or nothing.",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("on_limit__in", ("wait", "reschedule", "drop"))),
                        name="fairness_queue_on_limit_known",
                        violation_error_message="Expected “wait”, “reschedule” or “drop”.",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Tier",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "name",
                    models.CharField(
                        help_text="What settings and the resolver call this plan, for example “pro_plus”. Letters, digits, “_” and “-”. It cannot be changed later: make a new tier and move the tenants.",
                        max_length=100,
                        unique=True,
                        validators=[
                            django.core.validators.RegexValidator(
                                "\\A[A-Za-z0-9_-]+\\Z",
                                "Expected 1 to 100 letters, digits, “_” or “-”.",
                            )
                        ],
                        verbose_name="name",
                    ),
                ),
                (
                    "concurrency",
                    models.PositiveIntegerField(
                        blank=True,
                        help_text="How many tasks one tenant of this tier may run at the same time, for example 3. Empty is unlimited, 0 pauses every tenant of the tier.",
                        null=True,
                        validators=[django.core.validators.MaxValueValidator(1000000)],
                        verbose_name="tasks at once",
                    ),
                ),
                (
                    "weight",
                    models.FloatField(
                        default=1.0,
                        help_text="Share among tenants that wait, for example 2 for twice the share of a tier with 1. Above 0, up to 1,000,000.",
                        validators=[django_celery_fairness.number_fields.ShareBounds(1000000.0)],
                        verbose_name="weight",
                    ),
                ),
                (
                    "queue_class",
                    models.CharField(
                        choices=[("priority", "priority"), ("default", "default")],
                        default="default",
                        help_text="The queue of a service that tasks of this tier go to, for example “priority”: then service “analysis” uses analysis_priority.",
                        max_length=20,
                        verbose_name="queue class",
                    ),
                ),
                (
                    "max_waiting",
                    models.PositiveIntegerField(
                        blank=True,
                        help_text="How many tasks of one tenant of this tier may wait on fairredis, for example 10000: over it delay() raises BacklogFull. Empty is any number.",
                        null=True,
                        validators=[
                            django.core.validators.MinValueValidator(1),
                            django.core.validators.MaxValueValidator(1000000000),
                        ],
                        verbose_name="may wait",
                    ),
                ),
                (
                    "description",
                    models.TextField(
                        blank=True,
                        help_text="For people only, for example “Paid monthly, three reports at once”.",
                        verbose_name="description",
                    ),
                ),
            ],
            options={
                "verbose_name": "tier",
                "verbose_name_plural": "tiers",
                "ordering": ("name",),
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("name", ""), _negated=True),
                            django.db.models.lookups.LessThanOrEqual(
                                django_celery_fairness.octet_length.OctetLength("name"), 100
                            ),
                        ),
                        name="fairness_tier_name_length",
                        violation_error_message="Expected 1 to 100 letters, digits, “_” or “-”.",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            django.db.models.lookups.Exact(
                                models.Func(
                                    models.F("name"),
                                    models.Value(
                                        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"
                                    ),
                                    function="LTRIM",
                                    output_field=models.TextField(),
                                ),
                                models.Value(""),
                            )
                        ),
                        name="fairness_tier_name_characters",
                        violation_error_message="Expected 1 to 100 letters, digits, “_” or “-”.",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("concurrency", None),
                            ("concurrency__range", (0, 1000000)),
                            _connector="OR",
                        ),
                        name="fairness_tier_concurrency_bounds",
                        violation_error_message="Expected a whole number from 0 (pause) to 1,000,000, or nothing (see the help text).",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("weight__gt", 0), ("weight__lte", 1000000.0)),
                        name="fairness_tier_weight_bounds",
                        violation_error_message="Expected a number above 0, up to 1,000,000.",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("max_waiting", None),
                            ("max_waiting__range", (1, 1000000000)),
                            _connector="OR",
                        ),
                        name="fairness_tier_max_waiting_bounds",
                        violation_error_message="Expected a whole number from 1 to 1,000,000,000, or nothing (see the help text).",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("queue_class__in", ("priority", "default"))),
                        name="fairness_tier_queue_class_known",
                        violation_error_message="Expected “priority” or “default”.",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="ApiToken",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "name",
                    models.CharField(
                        help_text="Who uses it, for example “deploy of the shop”.",
                        max_length=100,
                        validators=[
                            django.core.validators.RegexValidator(
                                "\\A[^\\x00-\\x1f\\x7f]+\\Z", "Expected text on one line."
                            )
                        ],
                        verbose_name="name",
                    ),
                ),
                (
                    "scope",
                    models.CharField(
                        choices=[("read", "read"), ("write", "read and write")],
                        default="read",
                        help_text="“read” changes nothing.",
                        max_length=10,
                        verbose_name="scope",
                    ),
                ),
                (
                    "prefix",
                    models.CharField(
                        editable=False, max_length=8, unique=True, verbose_name="begins with"
                    ),
                ),
                ("digest", models.CharField(editable=False, max_length=64)),
                ("created_at", models.DateTimeField(auto_now_add=True, verbose_name="made")),
                (
                    "last_used_at",
                    models.DateTimeField(editable=False, null=True, verbose_name="last used"),
                ),
                (
                    "revoked_at",
                    models.DateTimeField(editable=False, null=True, verbose_name="revoked"),
                ),
                (
                    "owner",
                    models.ForeignKey(
                        blank=True,
                        help_text="The token may do no more than this user.",
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                        verbose_name="owner",
                    ),
                ),
            ],
            options={
                "verbose_name": "API token",
                "verbose_name_plural": "API tokens",
                "ordering": ("name", "pk"),
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("revoked_at", None)),
                        fields=("name",),
                        name="fairness_token_name_in_use",
                        violation_error_message="A token of this name exists and is not revoked.",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("scope__in", ("read", "write"))),
                        name="fairness_token_scope_known",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="LimitOverride",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "key",
                    models.CharField(
                        help_text="Whose numbers: the key of a limit, for example “api.stripe.com”, of a queue (“queue:emails”) or of a tenant (“tenant:42”).",
                        max_length=255,
                        unique=True,
                        validators=[django_celery_fairness.models.validate_key],
                        verbose_name="key",
                    ),
                ),
                (
                    "concurrency",
                    models.CharField(
                        blank=True,
                        default="",
                        help_text="For example “10”. “unlimited” is no limit, 0 pauses the key. Empty leaves the number as it is.",
                        max_length=9,
                        validators=[
                            django_celery_fairness.number_fields.CountText(0, 1000000, "pause")
                        ],
                        verbose_name="tasks at once",
                    ),
                ),
                (
                    "rate",
                    models.CharField(
                        blank=True,
                        default="",
                        help_text="How many may start in any period, for example “100/m”, “5/s” or “unlimited”. Empty leaves it as it is. A tenant’s key has none.",
                        max_length=50,
                        validators=[django_celery_fairness.number_fields.RateText(unlimited=True)],
                        verbose_name="rate",
                    ),
                ),
                (
                    "throttle",
                    models.CharField(
                        blank=True,
                        default="",
                        help_text="The same, but evenly spaced: for example “60/m” is one start a second.",
                        max_length=50,
                        validators=[django_celery_fairness.number_fields.RateText(unlimited=True)],
                        verbose_name="throttle",
                    ),
                ),
                (
                    "ends_at",
                    models.DateTimeField(
                        blank=True,
                        help_text="When the key’s own numbers hold again, for example the end of a sale. Empty is when this row is deleted.",
                        null=True,
                        verbose_name="ends at",
                    ),
                ),
                (
                    "reason",
                    models.CharField(
                        blank=True,
                        default="",
                        help_text="Why, for example “import of the new customer”. Commands and events show it.",
                        max_length=500,
                        verbose_name="reason",
                    ),
                ),
                (
                    "author_name",
                    models.CharField(
                        blank=True,
                        default="",
                        editable=False,
                        help_text="Who saved it last, for example “ada” or “token deploy”.",
                        max_length=200,
                        verbose_name="author",
                    ),
                ),
                (
                    "author",
                    models.ForeignKey(
                        blank=True,
                        editable=False,
                        help_text="Who saved it last, for example “ada”. Empty if a program did.",
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                        verbose_name="author",
                    ),
                ),
            ],
            options={
                "verbose_name": "override",
                "verbose_name_plural": "overrides",
                "ordering": ("key",),
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("key", ""), _negated=True),
                            django.db.models.lookups.LessThanOrEqual(
                                django_celery_fairness.octet_length.OctetLength("key"), 255
                            ),
                        ),
                        name="fairness_override_key",
                        violation_error_message="Expected the key of a limit, such as “api.stripe.com” or “tenant:42”.",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("concurrency__in", ("", "unlimited", "1000000")),
                            models.Q(
                                django.db.models.lookups.Exact(
                                    models.Func(
                                        models.F("concurrency"),
                                        models.Value("0123456789"),
                                        function="LTRIM",
                                        output_field=models.TextField(),
                                    ),
                                    models.Value(""),
                                ),
                                django.db.models.lookups.LessThanOrEqual(
                                    django_celery_fairness.octet_length.OctetLength("concurrency"),
                                    6,
                                ),
                            ),
                            _connector="OR",
                        ),
                        name="fairness_override_concurrency",
                        violation_error_message="Expected a whole number from 0 (pause) to 1,000,000, “unlimited”, or nothing (unchanged).",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("rate__in", ("", "unlimited")),
                            models.Q(
                                ("rate__contains", "/"),
                                django.db.models.lookups.LessThanOrEqual(
                                    django_celery_fairness.octet_length.OctetLength("rate"), 50
                                ),
                            ),
                            _connector="OR",
                        ),
                        name="fairness_override_rate",
                        violation_error_message="Expected a rate such as “100/m”, “unlimited”, or nothing (unchanged).",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("throttle__in", ("", "unlimited")),
                            models.Q(
                                ("throttle__contains", "/"),
                                django.db.models.lookups.LessThanOrEqual(
                                    django_celery_fairness.octet_length.OctetLength("throttle"), 50
                                ),
                            ),
                            _connector="OR",
                        ),
                        name="fairness_override_throttle",
                        violation_error_message="Expected a rate such as “100/m”, “unlimited”, or nothing (unchanged).",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("concurrency", ""), ("rate", ""), ("throttle", ""), _negated=True
                        ),
                        name="fairness_override_has_a_number",
                        violation_error_message="Expected at least one number.",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("key__startswith", "tenant:"), _negated=True),
                            models.Q(("rate", ""), ("throttle", "")),
                            _connector="OR",
                        ),
                        name="fairness_override_of_tenant",
                        violation_error_message="A tenant’s key has a number of tasks at once alone.",
                    ),
                    models.CheckConstraint(
                        condition=django.db.models.lookups.LessThanOrEqual(
                            django_celery_fairness.octet_length.OctetLength("reason"), 2000
                        ),
                        name="fairness_override_reason",
                        violation_error_message="Expected at most 500 characters that say why.",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="TenantTier",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "tenant",
                    models.CharField(
                        help_text="Who tasks are charged to, written as the tasks give it: for example “42” for user_id=42. At most 200 bytes.",
                        max_length=200,
                        unique=True,
                        validators=[django_celery_fairness.models.validate_tenant],
                        verbose_name="tenant",
                    ),
                ),
                (
                    "concurrency",
                    models.PositiveIntegerField(
                        blank=True,
                        help_text="A number for this tenant alone in place of its tier's, for example 8. Empty uses the tier's, 0 pauses this tenant.",
                        null=True,
                        validators=[django.core.validators.MaxValueValidator(1000000)],
                        verbose_name="own tasks at once",
                    ),
                ),
                (
                    "valid_from",
                    models.DateTimeField(
                        blank=True,
                        help_text="When the row begins to apply, for example the first day of a contract. Empty is at once. New tasks follow within tier_cache_seconds, waiting tasks with the next “manage.py publish”.",
                        null=True,
                        verbose_name="valid from",
                    ),
                ),
                (
                    "valid_until",
                    models.DateTimeField(
                        blank=True,
                        help_text="When the row ends, for example the last day of a trial. Empty is never. After that the tenant has the default tier, also while this site is down.",
                        null=True,
                        verbose_name="valid until",
                    ),
                ),
                (
                    "note",
                    models.TextField(
                        blank=True,
                        help_text="Why, for people only, for example “8 until the migration of May is done”.",
                        verbose_name="note",
                    ),
                ),
                (
                    "tier",
                    models.ForeignKey(
                        help_text="The plan of this tenant, for example “pro”.",
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="tenants",
                        to="django_celery_fairness.tier",
                        verbose_name="tier",
                    ),
                ),
            ],
            options={
                "verbose_name": "tenant's tier",
                "verbose_name_plural": "tenants' tiers",
                "ordering": ("tenant",),
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("tenant", ""), _negated=True),
                        name="fairness_tenant_not_empty",
                        violation_error_message="Expected 1 to 200 bytes of text.",
                    ),
                    models.CheckConstraint(
                        condition=django.db.models.lookups.LessThanOrEqual(
                            django_celery_fairness.octet_length.OctetLength("tenant"), 200
                        ),
                        name="fairness_tenant_bytes",
                        violation_error_message="Expected 1 to 200 bytes of text.",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("concurrency", None),
                            ("concurrency__range", (0, 1000000)),
                            _connector="OR",
                        ),
                        name="fairness_tenant_concurrency_bounds",
                        violation_error_message="Expected a whole number from 0 (pause) to 1,000,000, or nothing (see the help text).",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("valid_from", None),
                            ("valid_until", None),
                            ("valid_from__lt", models.F("valid_until")),
                            _connector="OR",
                        ),
                        name="fairness_tenant_time_order",
                        violation_error_message="Expected an end after the beginning.",
                    ),
                ],
            },
        ),
    ]
