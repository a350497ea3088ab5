"""How much of a tenant may wait, filled once from the settings then in force.

Until here the settings' own number held only as long as nothing was published from the database.
"""

import django.core.validators
from django.db import migrations, models


def fill(apps, schema_editor):
    from django_celery_fairness.wiring import settings_in_force

    tiers = apps.get_model("django_celery_fairness", "Tier").objects
    for tier in settings_in_force().tiers.values():
        tiers.using(schema_editor.connection.alias).filter(name=tier.name, max_waiting=None).update(
            max_waiting=tier.max_waiting
        )


class Migration(migrations.Migration):
    dependencies = [("django_celery_fairness", "0002_tiers_from_settings")]
    operations = [
        migrations.AddField(
            model_name="tier",
            name="max_waiting",
            field=models.PositiveIntegerField(
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
        migrations.AddConstraint(
            model_name="tier",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("max_waiting", None),
                    ("max_waiting__range", (1, 1000000000)),
                    _connector="OR",
                ),
                name="fairness_tier_max_waiting_bounds",
                violation_error_message="Expected a whole number from 1 to 1,000,000,000, or nothing (any number).",
            ),
        ),
        migrations.RunPython(fill, migrations.RunPython.noop, elidable=False),
    ]
