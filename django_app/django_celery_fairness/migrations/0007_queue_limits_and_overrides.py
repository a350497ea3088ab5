"""Limits of queues, overrides, tenants for a time, and the kind of an unpublished change."""

import django.core.validators
import django.db.models.deletion
import django.db.models.lookups
from django.conf import settings
from django.db import migrations, models

import django_celery_fairness.models
import django_celery_fairness.number_texts
import django_celery_fairness.octet_length


class Migration(migrations.Migration):
    dependencies = [
        ("django_celery_fairness", "0006_redis_pages"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.RenameField(model_name="unpublishedchange", old_name="tenant", new_name="name"),
        migrations.AlterField(
            model_name="unpublishedchange",
            name="name",
            field=models.CharField(blank=True, default="", max_length=255),
        ),
        migrations.AddField(
            model_name="unpublishedchange",
            name="kind",
            field=models.CharField(
                choices=[
                    ("tiers", "tiers"),
                    ("tenant", "tenant"),
                    ("queue", "queue"),
                    ("override", "override"),
                ],
                default="tenant",
                max_length=20,
            ),
            preserve_default=False,
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
                        validators=[django_celery_fairness.number_texts.validate_concurrency_text],
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
                        validators=[django_celery_fairness.number_texts.validate_rate_text],
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
                        validators=[django_celery_fairness.number_texts.validate_rate_text],
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
            ],
            options={
                "verbose_name": "override",
                "verbose_name_plural": "overrides",
                "ordering": ("key",),
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
                        validators=[django_celery_fairness.number_texts.validate_rate],
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
                        validators=[django_celery_fairness.number_texts.validate_rate],
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
            },
        ),
        migrations.AddField(
            model_name="tenanttier",
            name="valid_from",
            field=models.DateTimeField(
                blank=True,
                help_text="When the row begins to apply, for example the first day of a contract. Empty is at once. New tasks follow within tier_cache_seconds, waiting tasks with the next “manage.py publish”.",
                null=True,
                verbose_name="valid from",
            ),
        ),
        migrations.AddField(
            model_name="tenanttier",
            name="valid_until",
            field=models.DateTimeField(
                blank=True,
                help_text="When the row ends, for example the last day of a trial. Empty is never. After that the tenant has the default tier, also while this site is down.",
                null=True,
                verbose_name="valid until",
            ),
        ),
        migrations.AddConstraint(
            model_name="tenanttier",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("valid_from", None),
                    ("valid_until", None),
                    ("valid_from__lt", models.F("valid_until")),
                    _connector="OR",
                ),
                name="fairness_tenant_time_order",
                violation_error_message="Expected an end after the beginning.",
            ),
        ),
        migrations.AddField(
            model_name="limitoverride",
            name="author",
            field=models.ForeignKey(
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
        migrations.AddConstraint(
            model_name="queuelimit",
            constraint=models.CheckConstraint(
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
        ),
        migrations.AddConstraint(
            model_name="queuelimit",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("global_limit", None), ("global_limit__range", (0, 1000000)), _connector="OR"
                ),
                name="fairness_queue_global_limit_bounds",
                violation_error_message="Expected a whole number from 0 (pause) to 1,000,000, or nothing (see the help text).",
            ),
        ),
        migrations.AddConstraint(
            model_name="queuelimit",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("local_limit", None), ("local_limit__range", (0, 1000000)), _connector="OR"
                ),
                name="fairness_queue_local_limit_bounds",
                violation_error_message="Expected a whole number from 0 (pause) to 1,000,000, or nothing (see the help text).",
            ),
        ),
        migrations.AddConstraint(
            model_name="queuelimit",
            constraint=models.CheckConstraint(
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
        ),
        migrations.AddConstraint(
            model_name="queuelimit",
            constraint=models.CheckConstraint(
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
        ),
        migrations.AddConstraint(
            model_name="queuelimit",
            constraint=models.CheckConstraint(
                condition=models.Q(("on_limit__in", ("wait", "reschedule", "drop"))),
                name="fairness_queue_on_limit_known",
                violation_error_message="Expected “wait”, “reschedule” or “drop”.",
            ),
        ),
        migrations.AddConstraint(
            model_name="limitoverride",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("key", ""), _negated=True),
                    django.db.models.lookups.LessThanOrEqual(
                        django_celery_fairness.octet_length.OctetLength("key"), 255
                    ),
                ),
                name="fairness_override_key",
                violation_error_message="Expected the key of a limit, such as “api.stripe.com” or “tenant:42”.",
            ),
        ),
        migrations.AddConstraint(
            model_name="limitoverride",
            constraint=models.CheckConstraint(
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
                            django_celery_fairness.octet_length.OctetLength("concurrency"), 6
                        ),
                    ),
                    _connector="OR",
                ),
                name="fairness_override_concurrency",
                violation_error_message="Expected a whole number from 0 (pause) to 1,000,000, “unlimited”, or nothing (unchanged).",
            ),
        ),
        migrations.AddConstraint(
            model_name="limitoverride",
            constraint=models.CheckConstraint(
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
        ),
        migrations.AddConstraint(
            model_name="limitoverride",
            constraint=models.CheckConstraint(
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
        ),
        migrations.AddConstraint(
            model_name="limitoverride",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("concurrency", ""), ("rate", ""), ("throttle", ""), _negated=True
                ),
                name="fairness_override_has_a_number",
                violation_error_message="Expected at least one number.",
            ),
        ),
        migrations.AddConstraint(
            model_name="limitoverride",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("key__startswith", "tenant:"), _negated=True),
                    models.Q(("rate", ""), ("throttle", "")),
                    _connector="OR",
                ),
                name="fairness_override_of_tenant",
                violation_error_message="A tenant’s key has a number of tasks at once alone.",
            ),
        ),
        migrations.AddConstraint(
            model_name="limitoverride",
            constraint=models.CheckConstraint(
                condition=django.db.models.lookups.LessThanOrEqual(
                    django_celery_fairness.octet_length.OctetLength("reason"), 2000
                ),
                name="fairness_override_reason",
                violation_error_message="Expected at most 500 characters that say why.",
            ),
        ),
    ]
