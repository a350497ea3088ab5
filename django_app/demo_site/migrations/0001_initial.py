"""The ledger of the demo's tasks."""

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="DemoTask",
            fields=[
                ("task_id", models.UUIDField(primary_key=True, serialize=False)),
                ("tenant", models.CharField(max_length=200)),
                ("name", models.CharField(max_length=100)),
                ("sent_at", models.DateTimeField()),
                ("started_at", models.DateTimeField(null=True)),
                ("ended_at", models.DateTimeField(null=True)),
                ("worker", models.CharField(blank=True, default="", max_length=200)),
            ],
            options={
                "verbose_name": "demo task",
                "indexes": [models.Index(fields=["tenant", "ended_at"], name="demo_task_by_state")],
            },
        ),
    ]
