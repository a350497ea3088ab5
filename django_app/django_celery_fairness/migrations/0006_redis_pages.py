from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("django_celery_fairness", "0005_dashboard")]

    operations = [
        migrations.CreateModel(
            name="DeadLetter",
            fields=[("task_id", models.TextField(primary_key=True, serialize=False))],
            options={
                "verbose_name": "dead letter",
                "verbose_name_plural": "dead letters",
                "managed": False,
                "base_manager_name": "objects",
                "default_permissions": ("view", "change"),
            },
        ),
        migrations.CreateModel(
            name="LimitKey",
            fields=[("key", models.TextField(primary_key=True, serialize=False))],
            options={
                "verbose_name": "limit by key",
                "verbose_name_plural": "limits by key",
                "managed": False,
                "base_manager_name": "objects",
                "default_permissions": ("view", "change"),
            },
        ),
        migrations.CreateModel(
            name="Queue",
            fields=[("name", models.TextField(primary_key=True, serialize=False))],
            options={
                "verbose_name": "queue",
                "verbose_name_plural": "queues",
                "managed": False,
                "base_manager_name": "objects",
                "default_permissions": ("view",),
            },
        ),
        migrations.CreateModel(
            name="Task",
            fields=[("task_id", models.TextField(primary_key=True, serialize=False))],
            options={
                "verbose_name": "task",
                "verbose_name_plural": "task search",
                "managed": False,
                "base_manager_name": "objects",
                "default_permissions": ("view", "change"),
            },
        ),
    ]
