"""The permissions of the API are those of the admin: each action tried in both, route by route."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from django_celery_fairness import dashboard, tokens
from django_celery_fairness.api.urls import api as served
from django_celery_fairness.models import LimitOverride, QueueLimit, Tier
from django_celery_fairness.permissions import Action

from tests.cli.clearing import bury, send
from tests.django.suite.api_client import MEDIA_TYPE, ROOT, Answer, ApiClient
from tests.django.suite.operators import url
from tests.support.numbers import unset

pytestmark = pytest.mark.django_db(transaction=True)

REFERENCE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "http-api.md"
TIER = {**unset("tier"), "concurrency": 7, "queue_class": "default"}
TIER_FORM = {"concurrency": "7", "weight": "2", "queue_class": "default"}
TENANT = {"tier": "pro", **unset("tenant"), "note": ""}
WHY = {"reason": "incident 17"}

#: A request to the API: its method, its path and its body.
Call = tuple[str, str, Any]
#: A request to the admin: its method, its page, the names in its address, and its fields.
Visit = tuple[str, str, tuple[str, ...], dict[str, Any]]


@dataclass(frozen=True)
class Case:
    """An action, by each of its requests. One of several permissions is enough for it."""

    actions: tuple[Action, ...]
    calls: tuple[Call, ...] = ()
    visits: tuple[Visit, ...] = ()

    def __str__(self) -> str:
        first = self.calls[0][1] if self.calls else self.visits[0][1]
        return f"{' or '.join(each.permission for each in self.actions)} {first}"


def case(*actions: Action, **requests: Any) -> Case:
    return Case(actions, **requests)


def get(page: str, *names: str, **fields: Any) -> Visit:
    return "get", page, names, fields


def post(page: str, *names: str, **fields: Any) -> Visit:
    return "post", page, names, fields


CASES = [
    case(
        Action.SEE_DASHBOARD,
        calls=(
            ("GET", "events", None),
            ("GET", "stats", None),
            ("GET", "stats/minutes", None),
            ("GET", "stats/rejections", None),
        ),
        visits=(get("dashboard_changelist"),),
    ),
    case(
        Action.SEE_KEYS,
        calls=(("GET", "rate-limits", None), ("GET", "rate-limits/maps", None)),
        visits=(get("limitkey_changelist"), get("limitkey_change", "maps")),
    ),
    case(
        Action.STEER_KEYS,
        calls=(("DELETE", "rate-limits/of-a-command/override", None),),
        visits=(post("limitkey_change", "of-a-command", action="clear_override", **WHY),),
    ),
    case(
        Action.STEER_KEYS,
        visits=(
            post("limitkey_change", "tenant:42", action="pause", **WHY),
            post("limitkey_purge", "tenant:42", **WHY),
        ),
    ),
    case(
        Action.STEER_KEYS,
        Action.DELETE_OVERRIDES,
        calls=(("DELETE", "rate-limits/maps/override", None),),
    ),
    case(Action.DELETE_OVERRIDES, visits=(post("limitoverride_delete", "maps", post="yes"),)),
    case(Action.SEE_OVERRIDES, visits=(get("limitoverride_changelist"),)),
    case(
        Action.ADD_OVERRIDES,
        calls=(("PUT", "rate-limits/new", {"concurrency": 0}),),
        visits=(post("limitoverride_add", key="new", concurrency="0", **WHY),),
    ),
    case(
        Action.CHANGE_OVERRIDES,
        calls=(("PUT", "rate-limits/maps", {"concurrency": 0}),),
        visits=(post("limitoverride_change", "maps", concurrency="0", **WHY),),
    ),
    case(
        Action.SEE_RUNNING_TENANTS,
        visits=(get("tenant_changelist"), get("tenant_change", "tenant:42")),
    ),
    case(Action.RECORD_TENANTS, visits=(post("tenant_record"),)),
    case(
        Action.SEE_QUEUES,
        calls=(("GET", "admin/queues/emails/rate-limit", None),),
        visits=(get("queue_changelist"), get("queue_change", "emails")),
    ),
    case(Action.SEE_QUEUE_LIMITS, visits=(get("queuelimit_changelist"),)),
    case(
        Action.ADD_QUEUE_LIMITS,
        calls=(("PUT", "admin/queues/new/rate-limit", {"concurrency": 1}),),
        visits=(post("queuelimit_add", queue="new", global_limit="1", on_limit="wait"),),
    ),
    case(
        Action.CHANGE_QUEUE_LIMITS,
        calls=(("PUT", "admin/queues/emails/rate-limit", {"concurrency": 2}),),
        visits=(post("queuelimit_change", "emails", global_limit="2", on_limit="wait"),),
    ),
    case(
        Action.DELETE_QUEUE_LIMITS,
        calls=(("DELETE", "admin/queues/emails/rate-limit", None),),
        visits=(post("queuelimit_delete", "emails", post="yes"),),
    ),
    case(
        Action.SEE_TIERS,
        calls=(("GET", "tiers", None), ("GET", "tiers/pro", None)),
        visits=(get("tier_changelist"), get("tier_change", "pro")),
    ),
    case(
        Action.ADD_TIERS,
        calls=(("PUT", "tiers/new", TIER | {"description": ""}),),
        visits=(post("tier_add", name="new", **TIER_FORM),),
    ),
    case(
        Action.CHANGE_TIERS,
        calls=(("PUT", "tiers/pro", TIER | {"description": ""}),),
        visits=(
            post("tier_change", "pro", **TIER_FORM),
            post("tier_publish"),
        ),
    ),
    case(
        Action.DELETE_TIERS,
        calls=(("DELETE", "tiers/spare", None),),
        visits=(post("tier_delete", "spare", post="yes"),),
    ),
    case(
        Action.SEE_TENANTS,
        calls=(("GET", "tenants", None), ("GET", "tenants/acme", None)),
        visits=(get("tenanttier_changelist"), get("tenanttier_change", "acme")),
    ),
    case(
        Action.ADD_TENANTS,
        calls=(("PUT", "tenants/new", TENANT),),
        visits=(post("tenanttier_add", tenant="new", tier="pro"),),
    ),
    case(
        Action.CHANGE_TENANTS,
        calls=(("PUT", "tenants/acme", TENANT),),
        visits=(post("tenanttier_change", "acme", tier="pro"),),
    ),
    case(
        Action.DELETE_TENANTS,
        calls=(("DELETE", "tenants/acme", None),),
        visits=(post("tenanttier_delete", "acme", post="yes"),),
    ),
    case(
        Action.SEE_TASKS,
        calls=(("GET", "tasks", None), ("GET", "tasks/t0", None)),
        visits=(
            get("task_changelist"),
            get("task_changelist", id="t0"),
            get("task_change", "t0"),
        ),
    ),
    case(
        Action.CANCEL_TASKS,
        calls=(
            ("DELETE", "tasks/t0", None),
            ("DELETE", "tasks?tenant=nobody", None),
        ),
        visits=(post("task_cancel", "t0", **WHY), post("task_cancel_all", **WHY)),
    ),
    case(Action.SEE_DEAD_LETTERS, visits=(get("deadletter_changelist"),)),
    case(
        Action.REQUEUE_DEAD_LETTERS, visits=(post("deadletter_changelist", task_id="died", **WHY),)
    ),
    case(Action.SEE_TOKENS, visits=(get("apitoken_changelist"),)),
    case(Action.ADD_TOKENS, visits=(post("apitoken_add", name="new", scope="read"),)),
    case(Action.DELETE_TOKENS, visits=(post("apitoken_delete", "shop", post="yes"),)),
]
#: Tried in the tests of tokens: it is an action of the list, because no token can be edited.
ELSEWHERE = {Action.REVOKE_TOKENS}
#: Addresses that any permission of this app opens.
FOR_ALL = ("manifest", "health/live", "health/ready", "openapi.json")


@pytest.fixture
def rows(shop, claiming, acme) -> dict[str, dict[str, Any]]:
    """One of everything; return the ids of the rows by model and name."""
    dashboard.shared.forget()
    bury(shop, "9", "died")
    send(shop, "42", "t0")
    claiming.limits.override("of-a-command", concurrency=3)
    spare = Tier.objects.create(name="spare", concurrency=1)
    return {
        "tier": {"pro": acme.tier_id, "spare": spare.pk},
        "tenanttier": {"acme": acme.pk},
        "queuelimit": {"emails": QueueLimit.objects.create(queue="emails", global_limit=1).pk},
        "limitoverride": {
            "maps": LimitOverride.objects.create(key="maps", concurrency="1", reason="why").pk
        },
        "apitoken": {"shop": tokens.create("shop", "read")[0].pk},
    }


def staff(name: str, permissions: Any) -> User:
    user = User.objects.create_user(name, is_staff=True)
    user.user_permissions.set(permissions)
    return user


def ours() -> Any:
    return Permission.objects.filter(content_type__app_label="django_celery_fairness")


def sufficient(actions: tuple[Action, ...]) -> set[str]:
    """Every permission that allows one of the actions: to change rows is to see them too.

    A tenant without a row has a tier, so to change tenants is to add rows.
    """
    found = {each.permission for each in actions}
    more = {each.replace("view_", "change_") for each in found}
    return found | more | ({"change_tenanttier"} if Action.ADD_TENANTS in actions else set())


def visit(client: Client, rows: dict[str, dict[str, Any]], visit: Visit) -> int:
    method, page, names, fields = visit
    ids = rows.get(page.partition("_")[0], {})
    if "tier" in fields:
        fields = fields | {"tier": rows["tier"][fields["tier"]]}
    address = url(page, *(str(ids.get(each, each)) for each in names))
    sent = getattr(client, method)(address, fields)
    # A form that is shown again did nothing.
    is_done = sent.status_code == 302 or (method == "get" and sent.status_code == 200)
    assert is_done or sent.status_code == 403, (visit, sent.status_code, sent.content)
    status: int = sent.status_code
    return status


def by_session(client: Client, call: Call) -> Answer:
    method, path, body = call
    data = b"" if body is None else json.dumps(body).encode()
    return Answer(client.generic(method, ROOT + path, data, content_type=MEDIA_TYPE))


ids = pytest.mark.parametrize("case", CASES, ids=str)


def alone(requests: str) -> Any:
    """Each permission of each case that has such requests, alone."""
    found = [(each, action) for each in CASES if getattr(each, requests) for action in each.actions]
    named = [f"{action.permission} {each}" for each, action in found]
    return pytest.mark.parametrize(("case", "action"), found, ids=named)


@ids
def test_all_other_permissions_do_not_allow_it(client, rows, case):
    other = staff("other", ours().exclude(codename__in=sufficient(case.actions)))
    client.force_login(other)
    token = ApiClient("write", "of other", other)
    for call in case.calls:
        for answer in (token(*call), by_session(client, call)):
            assert case.actions[0].permission in answer.rejected(403, "forbidden")
    for each in case.visits:
        assert visit(client, rows, each) == 403


@alone("visits")
def test_its_permission_alone_allows_it_in_the_admin(client, rows, case, action):
    client.force_login(staff("one", ours().filter(codename=action.permission)))
    for each in case.visits:
        assert visit(client, rows, each) != 403


@alone("calls")
def test_its_permission_alone_allows_it_by_the_api(client, rows, case, action):
    user = staff("one", ours().filter(codename=action.permission))
    client.force_login(user)
    reading, writing = ApiClient("read", "reads", user), ApiClient("write", "writes", user)
    for call in case.calls:
        if action.writes:
            assert "its scope is read" in reading(*call).rejected(403, "forbidden")
        else:
            assert reading(*call).status == by_session(client, call).status == 200
        assert writing(*call).status in (200, 204)


def test_who_may_only_add_or_delete_does_no_more(client, rows):
    """A PUT may change a row, and the override of a command has no row."""
    user = staff("adder", ours().filter(codename__startswith="add_"))
    token = ApiClient("write", "adds", user)
    for path, body in [
        ("tiers/pro", {**TIER, "description": ""}),
        ("tenants/acme", TENANT),
        ("rate-limits/maps", {"concurrency": 0}),
        ("admin/queues/emails/rate-limit", {"concurrency": 2}),
    ]:
        assert "change_" in token("PUT", path, body).rejected(403, "forbidden")
    user.user_permissions.set(ours().filter(codename__startswith="delete_"))
    override = "rate-limits/of-a-command/override"
    assert "change_limitkey" in token("DELETE", override).rejected(403, "forbidden")


def test_who_may_change_tenants_may_give_one_its_first_row(client, rows):
    user = staff("changer", ours().filter(codename="change_tenanttier"))
    assert ApiClient("write", "changes", user)("PUT", "tenants/new", TENANT).status == 200
    client.force_login(user)
    assert visit(client, rows, post("tenanttier_add", tenant="another", tier="pro")) == 302


def test_who_may_write_and_not_read_gets_no_number(client, rows):
    may = ("add_limitoverride", "add_queuelimit", "delete_queuelimit")
    user = staff("writer", ours().filter(codename__in=may))
    token = ApiClient("write", "writes", user)
    put = token("PUT", "rate-limits/tenant:42", {"concurrency": 0})
    gone = token("DELETE", "admin/queues/emails/rate-limit")
    added = token("PUT", "admin/queues/other/rate-limit", {"concurrency": 1})
    for answer in (put, gone, added):
        assert (answer.status, answer.content) == (204, b"")
        assert not any(name.startswith("X-RateLimit") for name in answer.headers)


@pytest.mark.parametrize("path", FOR_ALL)
def test_any_permission_of_this_app_is_enough(client, rows, path):
    user = staff("one", ours().filter(codename="view_queue"))
    token = ApiClient("read", "reads", user)
    assert token("GET", path).status == 200
    token("GET", "nothing").rejected(404, "not_found")
    user.user_permissions.set(Permission.objects.exclude(pk__in=ours()))
    token("GET", path).rejected(403, "forbidden")
    token("GET", "nothing").rejected(403, "forbidden")


def test_every_action_and_every_route_is_tried_and_the_page_names_its_permission():
    assert {action for each in CASES for action in each.actions} | ELSEWHERE == set(Action)
    document = served.get_openapi_schema(path_prefix="")["paths"]
    routes = {
        (method.upper(), path.lstrip("/"))
        for path, methods in document.items()
        for method in methods
    }
    needed: dict[tuple[str, str], set[str]] = {("GET", path): set() for path in FOR_ALL}
    for each in CASES:
        for method, path, _ in each.calls:
            template = re.sub(
                r"^(rate-limits|tiers|tenants|tasks|admin/queues)/[^/]+",
                r"\1/{}",
                path.partition("?")[0],
            )
            found = needed.setdefault((method, template), set())
            found.update(action.permission for action in each.actions)
    assert needed.keys() == {
        (method, re.sub(r"\{\w+\}", "{}", path)) for method, path in routes
    } | {("GET", "openapi.json")}
    rows = re.findall(r"^\| (`.*) \| .* \| (.*) \|$", REFERENCE.read_text(), re.MULTILINE)
    written = {}
    for names, permissions in rows:
        for name in re.findall(r"`([^`]+)`", names):
            method, _, path = name.partition(" ")
            written[method, re.sub(r"\{\w+\}", "{}", path)] = set(
                re.findall(r"`(\w+)`", permissions)
            )
    assert {route: written[route] for route in needed} == needed
