"""``manage.py send_demo_tasks``: keep sending the demo's tasks, until it is stopped.

Invariant: the ledger starts empty: the tasks of an earlier site went with its Redis server.

Weakness: two of them on one database would send twice as much and empty each other's ledger.
"""

from __future__ import annotations

import threading
from typing import Any

from django.core.management.base import BaseCommand

SECONDS_BETWEEN = 1.0


class Command(BaseCommand):
    """Send tasks, each second those that the orders lack."""

    help = "Sends the demo's tasks until it is stopped. 'manage.py site' starts it."

    def handle(self, *_args: Any, **_options: Any) -> None:
        """Give the tenants their tiers, pause and boost one, then send."""
        from demo_site.celery import fairness
        from demo_site.load import WAITING_TASK, Deaths, create_tenants, operate, send, top_up
        from demo_site.models import DemoTask

        DemoTask.objects.all().delete()
        create_tenants()
        operate()
        send("erin", "analyze", 1.0, task_id=WAITING_TASK)
        deaths = Deaths(fairness)
        pause = threading.Event()
        while True:
            top_up()
            deaths.send()
            pause.wait(SECONDS_BETWEEN)
