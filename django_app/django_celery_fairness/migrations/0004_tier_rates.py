"""Give tiers, tenants and the overrides of tenants a rate and a throttle.

The tiers get those of the settings then in force, as 0002 has filled their other numbers.
"""

import django.db.models.lookups
from django.db import migrations, models

import django_celery_fairness.number_fields
import django_celery_fairness.octet_length


def fill(apps, schema_editor):
    from django_celery_fairness.wiring import settings_in_force

    tiers = apps.get_model("django_celery_fairness", "Tier").objects
    for tier in settings_in_force().tiers.values():
        rates = {"rate": tier.rate, "throttle": tier.throttle}
        given = {word: str(rate) for word, rate in rates.items() if rate is not None}
        empty = dict.fromkeys(rates, "")
        if given:
            alias = schema_editor.connection.alias
            tiers.using(alias).filter(name=tier.name, **empty).update(**given)


class Migration(migrations.Migration):
    dependencies = [
        ("django_celery_fairness", "0003_partitions_of_queues"),
    ]

    operations = [
        migrations.RemoveConstraint(
            model_name="limitoverride",
            name="fairness_override_of_tenant",
        ),
        migrations.AddField(
            model_name="tenanttier",
            name="rate",
            field=models.CharField(
                blank=True,
                default="",
                help_text="How many tasks of this tenant may start in any period in place of its tier's, for example “500/h”. Empty uses the tier's.",
                max_length=50,
                validators=[django_celery_fairness.number_fields.RateText(unlimited=False)],
                verbose_name="own rate",
            ),
        ),
        migrations.AddField(
            model_name="tenanttier",
            name="throttle",
            field=models.CharField(
                blank=True,
                default="",
                help_text="The same, but evenly spaced, for example “60/m”. Empty uses the tier's.",
                max_length=50,
                validators=[django_celery_fairness.number_fields.RateText(unlimited=False)],
                verbose_name="own throttle",
            ),
        ),
        migrations.AddField(
            model_name="tier",
            name="rate",
            field=models.CharField(
                blank=True,
                default="",
                help_text="How many tasks of one tenant of this tier may start in any period, for example “100/h” or “1000/PT24H”. Empty is any number.",
                max_length=50,
                validators=[django_celery_fairness.number_fields.RateText(unlimited=False)],
                verbose_name="rate",
            ),
        ),
        migrations.AddField(
            model_name="tier",
            name="throttle",
            field=models.CharField(
                blank=True,
                default="",
                help_text="The same, but evenly spaced: for example “60/m” is one start a second.",
                max_length=50,
                validators=[django_celery_fairness.number_fields.RateText(unlimited=False)],
                verbose_name="throttle",
            ),
        ),
        migrations.AlterField(
            model_name="limitoverride",
            name="rate",
            field=models.CharField(
                blank=True,
                default="",
                help_text="How many may start in any period, for example “100/m”, “5/s” or “unlimited”. Empty leaves it as it is.",
                max_length=50,
                validators=[django_celery_fairness.number_fields.RateText(unlimited=True)],
                verbose_name="rate",
            ),
        ),
        migrations.AddConstraint(
            model_name="tenanttier",
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
                name="fairness_tenant_rate",
                violation_error_message="Expected a rate such as “100/m” or “100/PT1M”, or nothing.",
            ),
        ),
        migrations.AddConstraint(
            model_name="tenanttier",
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
                name="fairness_tenant_throttle",
                violation_error_message="Expected a rate such as “100/m” or “100/PT1M”, or nothing.",
            ),
        ),
        migrations.AddConstraint(
            model_name="tier",
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
                name="fairness_tier_rate",
                violation_error_message="Expected a rate such as “100/m” or “100/PT1M”, or nothing.",
            ),
        ),
        migrations.AddConstraint(
            model_name="tier",
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
                name="fairness_tier_throttle",
                violation_error_message="Expected a rate such as “100/m” or “100/PT1M”, or nothing.",
            ),
        ),
        migrations.RunPython(fill, migrations.RunPython.noop, elidable=False),
    ]
