"""Staff who may only look, in a real browser: no action is offered, and none is accepted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.cli.clearing import bury, send
from tests.cli.conftest import Installation
from tests.django.browsing import ADMIN, DASHBOARD
from tests.django.live_site import LiveSite
from tests.support.redis_server import RedisServer
from tests.support.services import only_in_ci

#: A link there leads to the form of its limit.
QUEUE = f"{ADMIN}/queue/celery/change/"
#: Pages on which the administrator is offered an action.
WITH_ACTIONS = (
    f"{ADMIN}/tenant/",
    f"{ADMIN}/limitkey/tenant_3Aflood/change/",
    f"{ADMIN}/limitkey/api.stripe.com/change/",
    f"{ADMIN}/task/?id=t1",
    f"{ADMIN}/deadletter/",
    f"{ADMIN}/tier/",
    f"{ADMIN}/tier/1/change/",
    f"{ADMIN}/tenanttier/",
    f"{ADMIN}/tenanttier/1/change/",
    f"{ADMIN}/queuelimit/",
    f"{ADMIN}/queuelimit/1/change/",
    f"{ADMIN}/limitoverride/",
    f"{ADMIN}/limitoverride/1/change/",
    QUEUE,
)
#: Pages that ask before an action. A person without the permission does not see the question.
QUESTIONS = (
    f"{ADMIN}/limitkey/tenant_3Aflood/purge/",
    f"{ADMIN}/task/t1/cancel/",
    f"{ADMIN}/tier/add/",
    f"{ADMIN}/tier/2/delete/",
    f"{ADMIN}/tenanttier/add/",
    f"{ADMIN}/tenanttier/1/delete/",
    f"{ADMIN}/queuelimit/add/",
    f"{ADMIN}/queuelimit/1/delete/",
    f"{ADMIN}/limitoverride/add/",
    f"{ADMIN}/limitoverride/1/delete/",
)
WITHOUT_ACTIONS = (DASHBOARD, f"{ADMIN}/queue/")

#: Each button that sends a form, and each link to a question.
_OFFERS = """
const part = document.querySelector("#content");
const shown = (each) => each.checkVisibility() && !each.disabled;
const buttons = part.querySelectorAll(
  "form[method=post] :is(button, input[type=submit], input[type=checkbox])");
const links = Array.from(part.querySelectorAll("a[href]")).filter(
  (link) => /\\/(add|delete|purge|cancel|publish)\\/([?#]|$)/.test(link.href));
const name = (each) => each.value || each.textContent.trim();
[...buttons, ...links].filter(shown).map(name)
"""
#: Each form of a page as it is sent by each of its buttons or actions: address and fields.
_ORDERS = """
Array.from(document.querySelectorAll("#content form[method=post]")).flatMap((form) => {
  // A button named "action" hides the attribute of its form.
  const address = new URL(form.getAttribute("action") || "", location.href).href;
  const fill = (fields, value) => {
    for (const field of form.querySelectorAll(fields)) field.value = value;
  };
  fill("input[name=reason]", "for fun");
  fill("input[name=for_seconds]", "1h");
  fill("input[name$=concurrency]", "9");
  for (const box of form.querySelectorAll("input[type=checkbox]")) box.checked = true;
  const fields = Array.from(new FormData(form)).filter(
    ([name]) => name !== "csrfmiddlewaretoken" && name !== "action");
  const actions = Array.from(form.querySelectorAll("select[name=action] option"))
    .map((option) => option.value).filter(Boolean)
    .map((action) => ({action, confirmed: "yes", post: "yes", reason: "for fun"}));
  const buttons = Array.from(form.querySelectorAll(":is(button, input)[type=submit]"))
    .map((button) => ({[button.name]: button.value}))
    .filter((fields) => !("index" in fields));
  return [...actions, ...buttons].map((more) => [address, [...fields, ...Object.entries(more)]]);
})
"""
#: Sends such an order with the token of the person who is logged in.
_SEND = """
async ([address, fields]) => {
  const token = document.querySelector("[name=csrfmiddlewaretoken]").value;
  const body = new URLSearchParams([...fields, ["csrfmiddlewaretoken", token]]);
  return (await fetch(address, {method: "POST", body})).status;
}
"""
CHANGED = """
from django_celery_fairness.models import LimitOverride, QueueLimit, TenantTier, Tier
TenantTier.objects.create(tenant="flood", tier=Tier.objects.get(name="free"))
QueueLimit.objects.create(queue="emails", global_limit=4)
LimitOverride.objects.create(key="api.example.com", concurrency="2", reason="a sale")
models = TenantTier, QueueLimit, LimitOverride
answer = [model.objects.get().pk for model in models] + [Tier.objects.get(name="free").pk]
"""
#: The rows that the actions change, and the history. An action makes its entry there first.
_ROWS = """
from django.contrib.admin.models import LogEntry
from django_celery_fairness.models import (
    LimitOverride, QueueLimit, TenantTier, Tier, UnpublishedChange)
models = Tier, TenantTier, QueueLimit, LimitOverride, UnpublishedChange, LogEntry
answer = [str(list(model.objects.order_by("pk").values())) for model in models]
"""


def tables_of(server: RedisServer) -> dict[bytes, bytes | None]:
    """Return all that Redis has but what every look moves, and answers that end by themselves."""
    with server.client() as client:
        return {
            key: client.dump(key)
            for key in client.scan_iter()
            if not key.startswith(b"_kombu.")
            and key != b"{fairness}:clock"
            and not key.startswith(b"{fairness}:last_answer:")
        }


@pytest.fixture
def busy(live_site: LiveSite, shop: Installation) -> Installation:
    """Something to act on: a row of each kind, waiting tasks, a dead letter."""
    assert live_site.run(CHANGED) == [1, 1, 1, 1]
    bury(shop, "42", "dead")
    for number in range(2):
        send(shop, "flood", f"t{number}", limits="api.stripe.com|C1;R2/3600000|w")
    shop.claim()
    return shop


@pytest.mark.browser
@only_in_ci
def test_no_action_is_offered_to_who_may_only_look(
    page_of: Callable[[str], Page], busy: Installation
) -> None:
    boss, clerk = page_of("boss"), page_of("clerk")
    for path in (*WITH_ACTIONS, *WITHOUT_ACTIONS):
        clerk.goto(path)
        expect(clerk.locator("#content-main")).to_be_visible()
        assert clerk.evaluate(_OFFERS) == [], path
        boss.goto(path)
        assert bool(boss.evaluate(_OFFERS)) == (path in WITH_ACTIONS), path
    for path in QUESTIONS:
        boss.goto(path)
        assert boss.evaluate(_OFFERS), path
        answer = clerk.goto(path)
        assert answer is not None
        assert answer.status == 403, path


@pytest.mark.browser
def test_no_action_is_accepted_from_who_may_only_look(
    page_of: Callable[[str], Page],
    busy: Installation,
    live_site: LiveSite,
    redis_server: RedisServer,
) -> None:
    """The administrator's forms, sent by the other person, are rejected and change nothing."""
    boss, clerk = page_of("boss"), page_of("clerk")
    orders: list[Any] = []
    for path in (*WITH_ACTIONS, *QUESTIONS):
        boss.goto(path)
        found = boss.evaluate(_ORDERS)
        # The pages of a task and of a queue have a link to a question, and no form.
        assert bool(found) == ("/task/?id=" not in path and path != QUEUE), path
        orders += found
    clerk.goto(DASHBOARD)
    # The site outlives the memory of the test before, and notes once that it is gone.
    for _ in range(2):
        losses = busy.client.hget("{fairness}:counters", "memory_lost")
        rows, tables = live_site.run(_ROWS), tables_of(redis_server)
        for address, fields in orders:
            status = clerk.evaluate(_SEND, [address, fields])
            # Django ignores an action that it does not offer, and shows the list.
            ignored = {"confirmed", "action"} <= dict(fields).keys()
            assert status == (200 if ignored else 403), (address, fields)
        if busy.client.hget("{fairness}:counters", "memory_lost") == losses:
            break
    assert live_site.run(_ROWS) == rows
    assert tables_of(redis_server) == tables
    # The same orders are good ones.
    for pause in ("pause", "pause_tenants"):
        order = next(order for order in orders if dict(order[1]).get("action") == pause)
        assert boss.evaluate(_SEND, order) == 200
        assert tables_of(redis_server) != tables
        rows, before = live_site.run(_ROWS), rows
        assert rows != before
