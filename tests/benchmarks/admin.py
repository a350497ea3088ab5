"""UI: the pages of the Django admin with many tenants, and what an open dashboard costs Redis."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.benchmarks.claims import UNLIMITED, Bench
from tests.benchmarks.harness import Row
from tests.benchmarks.operator import waiting_task
from tests.support.redis_server import RedisServer

PROJECT = Path(__file__).resolve().parents[2] / "django_app"
#: The longest time of a page, and the part of a core that an open dashboard may cost Redis.
PAGE_MS, CORE = 300.0, 0.01
#: The header with which the script of a page requests only the part that changes.
LIVE = {"X-Fairness": "live"}
#: Seconds between two looks of an open dashboard, and looks of one measurement.
EVERY_SECONDS, LOOKS = 2.0, 20


def rows(server: RedisServer, tasks: int) -> Iterator[Row]:
    """Measure the pages while ``tasks`` tasks of a tenth as many tenants wait."""
    tenants = tasks // 10
    bench = Bench(server)
    bench.put([waiting_task(number, number % tenants, "") for number in range(tasks)])
    bench.claim(8, rules=UNLIMITED)
    # The site's settings read the environment, and the parts after this one have another broker.
    with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ):
        client = _site(folder, f"fair{server.url}", tenants)
        from django.urls import reverse
        from django_celery_fairness.dashboard import shared

        app = "admin:django_celery_fairness"
        for name, page in (
            ("tenant list", "tenanttier_changelist"),
            ("dashboard", "dashboard_changelist"),
        ):
            address = reverse(f"{app}_{page}")

            def ask(address: str = address) -> None:
                shared.forget()
                answer = client.get(address, headers=LIVE)
                assert answer.status_code == 200, answer

            yield _page(f"{name}, {tasks:,} tasks of {tenants:,} tenants", ask)
        dashboard = reverse(f"{app}_dashboard_changelist")
        yield _open_dashboard(bench.client, lambda: client.get(dashboard, headers=LIVE))


def _site(folder: str, broker: str, tenants: int) -> Any:
    """Return a client of the migrated demo site, logged in."""
    sys.path.insert(0, str(PROJECT))
    os.environ |= {
        "DJANGO_SETTINGS_MODULE": "demo_site.settings",
        "DEMO_SITE_DIR": folder,
        "CELERY_BROKER_URL": broker,
    }
    import django

    django.setup()
    from django.contrib.auth.models import User
    from django.core.management import call_command
    from django.test import Client
    from django_celery_fairness.models import TenantTier, Tier

    call_command("migrate", verbosity=0)
    tier = Tier.objects.get(name="pro")
    TenantTier.objects.bulk_create(
        TenantTier(tenant=f"acme{number}", tier=tier) for number in range(tenants)
    )
    client = Client(SERVER_NAME="localhost")
    client.force_login(User.objects.create_superuser("boss"))
    return client


def _page(what: str, ask: Callable[[], None]) -> Row:
    ask()
    times = []
    for _ in range(LOOKS):
        begun = time.perf_counter()
        ask()
        times.append((time.perf_counter() - begun) * 1000)
    times.sort()
    middle, last = times[LOOKS // 2], times[-1]
    return Row(
        "UI",
        f"page of the {what}",
        f"<= {PAGE_MS:.0f} ms",
        f"median {middle:.0f} ms, the longest of {LOOKS} {last:.0f} ms",
        last <= PAGE_MS,
    )


def _open_dashboard(redis: Any, look: Callable[[], Any]) -> Row:
    from django_celery_fairness.dashboard import shared

    def used() -> float:
        cpu = redis.info("cpu")
        return float(cpu["used_cpu_user"] + cpu["used_cpu_sys"])

    before = used()
    for _ in range(LOOKS):
        shared.expire()
        look()
    part = (used() - before) / (LOOKS * EVERY_SECONDS)
    return Row(
        "UI",
        "part of a core that an open dashboard costs Redis",
        f"< {CORE:.0%}",
        f"{part:.2%}",
        part < CORE,
    )
