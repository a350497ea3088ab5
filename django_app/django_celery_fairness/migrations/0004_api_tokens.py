"""The tokens of the HTTP API."""

import django.core.validators
import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("django_celery_fairness", "0003_max_waiting"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
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
    ]
