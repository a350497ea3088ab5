"""The permission of each action: one table, which the admin and the HTTP API read.

Each action needs one permission of Django. As in Django's own admin, the permission to change rows
includes the permission to see them. The permission to change tenants also includes to add a row,
because a tenant without a row has a tier too.

Invariant: the API allows a user no action that the admin refuses, and refuses none that it allows.
The admin wants ``is_staff`` besides, because only staff can log in there.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.http import HttpRequest

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Any]
else:
    # Generic in django-stubs only.
    ModelAdmin = admin.ModelAdmin

APP = "django_celery_fairness"


class Action(Enum):
    """An action: its verb, the name of its model, and what it is in words."""

    SEE_DASHBOARD = "view", "dashboard", "read the statistics, the events and the metrics"
    SEE_KEYS = "view", "limitkey", "read limits by key"
    STEER_KEYS = "change", "limitkey", "pause, boost or purge a key, or end its override"
    SEE_RUNNING_TENANTS = "view", "tenant", "read running and finished tasks by tenant"
    RECORD_TENANTS = "change", "tenant", "record the tasks that finish"
    SEE_QUEUES = "view", "queue", "read queues and their limits"
    SEE_TASKS = "view", "task", "read where a task is"
    CANCEL_TASKS = "change", "task", "cancel a task"
    SEE_DEAD_LETTERS = "view", "deadletter", "read dead letters"
    REQUEUE_DEAD_LETTERS = "change", "deadletter", "requeue a dead letter"
    SEE_TIERS = "view", "tier", "read tiers"
    ADD_TIERS = "add", "tier", "add a tier"
    CHANGE_TIERS = "change", "tier", "change a tier"
    DELETE_TIERS = "delete", "tier", "delete a tier"
    SEE_TENANTS = "view", "tenanttier", "read tenants"
    ADD_TENANTS = "add", "tenanttier", "add a tenant"
    CHANGE_TENANTS = "change", "tenanttier", "change, pause, boost or purge a tenant"
    DELETE_TENANTS = "delete", "tenanttier", "delete a tenant"
    SEE_QUEUE_LIMITS = "view", "queuelimit", "read the rows of limits of queues"
    ADD_QUEUE_LIMITS = "add", "queuelimit", "add a limit of a queue"
    CHANGE_QUEUE_LIMITS = "change", "queuelimit", "change a limit of a queue"
    DELETE_QUEUE_LIMITS = "delete", "queuelimit", "delete a limit of a queue"
    SEE_OVERRIDES = "view", "limitoverride", "read the rows of overrides"
    ADD_OVERRIDES = "add", "limitoverride", "add an override"
    CHANGE_OVERRIDES = "change", "limitoverride", "change an override"
    DELETE_OVERRIDES = "delete", "limitoverride", "delete the row of an override"
    SEE_TOKENS = "view", "apitoken", "read tokens"
    ADD_TOKENS = "add", "apitoken", "make a token"
    REVOKE_TOKENS = "change", "apitoken", "revoke a token"
    DELETE_TOKENS = "delete", "apitoken", "delete a token"

    @property
    def permission(self) -> str:
        """The permission, without the name of the app: ``view_tier``."""
        verb, model, _words = self.value
        return f"{verb}_{model}"

    @property
    def words(self) -> str:
        """What it is, after "may not"."""
        return self.value[2]

    @property
    def writes(self) -> bool:
        """Whether it changes something."""
        return self.value[0] != "view"

    def allowed(self, user: Any) -> bool:
        """Return whether a user may do it."""
        if user.has_perm(f"{APP}.{self.permission}"):
            return True
        is_included = not self.writes or self is Action.ADD_TENANTS
        change = _BY_PERMISSION.get(("change", self.value[1]))
        return is_included and change is not None and change.allowed(user)


_BY_PERMISSION: dict[tuple[str, str], Action] = {each.value[:2]: each for each in Action}


def allowed_any(user: Any) -> bool:
    """Return whether a user has any permission of this app, so that the admin lists it."""
    return bool(user.has_module_perms(APP))


class ByTable(ModelAdmin):
    """An admin whose permissions are those of the table: without a row there is no such action."""

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002 (of Django)
        """Return whether the person may see the pages."""
        return self._allows(request, "view")

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Return whether something can be added, and the person may do it."""
        return self._allows(request, "add")

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002 (of Django)
        """Return whether something can be changed, and the person may do it."""
        return self._allows(request, "change")

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002 (of Django)
        """Return whether something can be deleted, and the person may do it."""
        return self._allows(request, "delete")

    def _allows(self, request: HttpRequest, verb: str) -> bool:
        action = _BY_PERMISSION.get((verb, str(self.opts.model_name)))
        return action is not None and action.allowed(request.user)


def saving(model: Any, *, is_saved: bool) -> Action:
    """Return the action that saves a row of a model: it adds the row, or changes a saved one."""
    name: str = model._meta.model_name  # noqa: SLF001 (documented by Django)
    return _BY_PERMISSION["change" if is_saved else "add", name]
