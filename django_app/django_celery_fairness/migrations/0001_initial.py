"""The tables, with every bound as a constraint."""

import django.core.validators
import django.db.models.deletion
import django.db.models.lookups
from django.db import migrations, models

import django_celery_fairness.models
import django_celery_fairness.octet_length


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="UnpublishedChange",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("tenant", models.CharField(blank=True, default="", max_length=200)),
                ("made_at", models.DateTimeField(auto_now_add=True)),
                ("error", models.TextField(blank=True, default="")),
            ],
            options={
                "verbose_name": "unpublished change",
                "verbose_name_plural": "unpublished changes",
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
                        validators=[django_celery_fairness.models.validate_weight],
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
                        condition=models.Q(("queue_class__in", ("priority", "default"))),
                        name="fairness_tier_queue_class_known",
                        violation_error_message="Expected “priority” or “default”.",
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
                ],
            },
        ),
    ]
