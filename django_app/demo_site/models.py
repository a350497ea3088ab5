"""The ledger of the demo's tasks: their tenants, times and workers.

Invariant: it is independent of Redis, so it can be compared with the limiter.

Weakness: a killed task has no end here, so the page shows it as running until the site starts
again.
"""

from __future__ import annotations

from django.db import models


class DemoTask(models.Model):
    """One task of the demo, from sending to its end."""

    task_id = models.UUIDField(primary_key=True)
    tenant = models.CharField(max_length=200)
    name = models.CharField(max_length=100)
    sent_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    worker = models.CharField(max_length=200, blank=True, default="")

    class Meta:
        """Indexes for the queries of the page."""

        verbose_name = "demo task"
        indexes = (models.Index(name="demo_task_by_state", fields=("tenant", "ended_at")),)

    def __str__(self) -> str:
        return f"{self.name} of {self.tenant}"
