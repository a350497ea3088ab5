"""The Django shop: a worker, the admin that gives a customer another tier, and the API's limit."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.examples.copied import Copied, ended, most_at_once
from tests.support.nodes import WorkerNode
from tests.support.services import only_in_ci
from tests.support.waiting import at_most, eventually

# The admin and the limits have tests of their own.
pytestmark = [pytest.mark.redis, only_in_ci]

#: The form at the address that the README names, as a person sends it.
ADD_ROW = """
from django.contrib.auth.models import User
from django.test import Client
from django_celery_fairness.models import Tier
client = Client(SERVER_NAME="localhost")
client.force_login(User.objects.create_superuser("ada"))
row = {"tenant": "petra", "tier": Tier.objects.get(name="pro").pk}
answer = client.post("/admin/django_celery_fairness/tenanttier/add/", row)
assert answer.status_code == 302, answer.content.decode()
"""


@pytest.fixture
def shop(tmp_path: Path, redis_url: str) -> Copied:
    copied = Copied("django_shop", tmp_path, {"CELERY_BROKER_URL": f"fair{redis_url}"})
    copied.python(copied.command("python manage.py migrate"))
    return copied


def test_the_admin_gives_a_customer_a_tier_and_the_api_has_one_limit(
    shop: Copied, start_worker: Callable[..., WorkerNode]
) -> None:
    assert "no issues" in shop.python("python manage.py check --database default")
    for customer in ("fred", "petra"):
        command = shop.command(f"python manage.py place_orders {customer} ")
        shop.python(re.sub(r"\d+$", "2", command))
    worker = start_worker("shop", concurrency=4, env=shop.variables)
    eventually(lambda: ended(worker.log_text()) == 4, at_most(30))
    log = worker.log_text()
    assert [most_at_once(log, each.__eq__) for each in ("fred", "petra")] == [1, 1]

    shop.python("python manage.py shell -c", ADD_ROW)
    shop.python(re.sub(r"\d+$", "4", command))
    eventually(lambda: ended(worker.log_text()) == 8, at_most(30))
    # Her tier now allows three, and the payment service two.
    assert most_at_once(worker.log_text(), "petra".__eq__) == 2
    shown = shop.python("python -m celery -A shop fairness tenant show petra")
    assert shown.startswith("tenant:petra: tier pro, ")
