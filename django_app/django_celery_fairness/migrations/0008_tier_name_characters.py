"""The characters of a tier's name as a constraint.

It fails if a tier has another name, which nothing could publish. Rename that tier first.
"""

import django.db.models.lookups
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("django_celery_fairness", "0007_queue_limits_and_overrides")]
    operations = [
        migrations.AddConstraint(
            model_name="tier",
            constraint=models.CheckConstraint(
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
        ),
    ]
