"""Give tiers and tenants a burst.

The tiers get that of the settings then in force, as 0002 has filled their other numbers.
"""

import django.core.validators
from django.db import migrations, models


def fill(apps, schema_editor):
    from django_celery_fairness.wiring import settings_in_force

    tiers = apps.get_model("django_celery_fairness", "Tier").objects
    alias = schema_editor.connection.alias
    for tier in settings_in_force().tiers.values():
        if tier.burst is not None:
            tiers.using(alias).filter(name=tier.name, burst=None).update(burst=tier.burst)


class Migration(migrations.Migration):
    dependencies = [
        ("django_celery_fairness", "0005_overrides_of_patterns"),
    ]

    operations = [
        migrations.AddField(
            model_name="tenanttier",
            name="burst",
            field=models.PositiveIntegerField(
                blank=True,
                help_text="A number for this tenant alone in place of its tier's, for example 20. Empty uses the tier's.",
                null=True,
                validators=[
                    django.core.validators.MinValueValidator(1),
                    django.core.validators.MaxValueValidator(1000000),
                ],
                verbose_name="own tasks while idle",
            ),
        ),
        migrations.AddField(
            model_name="tier",
            name="burst",
            field=models.PositiveIntegerField(
                blank=True,
                help_text="How many tasks one tenant of this tier may run while a worker on fairredis has nothing else to start, for example 10. Empty is no burst.",
                null=True,
                validators=[
                    django.core.validators.MinValueValidator(1),
                    django.core.validators.MaxValueValidator(1000000),
                ],
                verbose_name="at once while idle",
            ),
        ),
        migrations.AddConstraint(
            model_name="tenanttier",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("burst", None), ("burst__range", (1, 1000000)), _connector="OR"
                ),
                name="fairness_tenant_burst_bounds",
                violation_error_message="Expected a whole number from 1 to 1,000,000, or nothing (see the help text).",
            ),
        ),
        migrations.AddConstraint(
            model_name="tier",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("burst", None), ("burst__range", (1, 1000000)), _connector="OR"
                ),
                name="fairness_tier_burst_bounds",
                violation_error_message="Expected a whole number from 1 to 1,000,000, or nothing (see the help text).",
            ),
        ),
        migrations.RunPython(fill, migrations.RunPython.noop, elidable=False),
    ]
