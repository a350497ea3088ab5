"""Fill the tier table once from the settings then in force; from there on the database rules.

Forwards twice is harmless: a tier that exists is left alone. Backwards removes the tiers that are
still as the settings say and that no tenant has; what a person changed stays.
"""

from django.db import migrations

DESCRIPTIONS = {
    "free": "Everybody without a row of their own, unless the setting default_tier says otherwise",
    "pro": "Paid",
    "pro_plus": "Paid, with a number of its own",
    "enterprise": "Paid, the largest share",
}


def _in_force():
    from django_celery_fairness.wiring import settings_in_force

    return settings_in_force().tiers.values()


def create(apps, schema_editor):
    tiers = apps.get_model("django_celery_fairness", "Tier").objects
    for tier in _in_force():
        tiers.using(schema_editor.connection.alias).get_or_create(
            name=tier.name,
            defaults={
                "concurrency": tier.concurrency,
                "weight": tier.weight,
                "queue_class": tier.queue_class,
                "max_waiting": tier.max_waiting,
                "description": DESCRIPTIONS.get(tier.name, ""),
            },
        )


def remove(apps, schema_editor):
    tiers = apps.get_model("django_celery_fairness", "Tier").objects
    for tier in _in_force():
        tiers.using(schema_editor.connection.alias).filter(
            name=tier.name,
            concurrency=tier.concurrency,
            weight=tier.weight,
            queue_class=tier.queue_class,
            max_waiting=tier.max_waiting,
            description=DESCRIPTIONS.get(tier.name, ""),
            tenants=None,
        ).delete()


class Migration(migrations.Migration):
    dependencies = [("django_celery_fairness", "0001_initial")]
    operations = [migrations.RunPython(create, remove, elidable=False)]
