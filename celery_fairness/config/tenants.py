"""Tenants: who a task is charged to, and how a tenant stands in a key.

A tenant is kept as text of at most 200 bytes. Two are reserved: ``_none`` (all tasks without a
tenant, with ``no_tenant="shared"``) and ``_invalid`` (tasks whose tenant could not be read:
charged and logged, never bypassed). A user who calls a tenant ``_none`` does not meet them: text
that begins with an underscore is written as a hash in keys, and the reserved two are of a type
of their own.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any
from uuid import UUID

from celery_fairness.errors import TenantInvalid

#: Longest tenant, in bytes of UTF-8.
TENANT_BYTES = 200
#: Longest tenant that is written as it is in a key, in characters.
PLAIN_CHARACTERS = 120


class Reserved(str):
    """A tenant as keys have it, which no value from a message can be: one of our own, or a hash."""

    __slots__ = ()


NONE = Reserved("_none")
INVALID = Reserved("_invalid")

#: What the Open Job Spec (section 6.2) allows as a key.
KEY_PATTERN = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._:-]*")

#: How :func:`key_hash` writes what cannot stand in a key.
_HASH = re.compile(r"h_[0-9a-f]{32}")

_EXPECTED = "expected str, int or UUID"


def normalise(value: Any) -> str | None:
    """Return ``value`` as a tenant, or None where it means "no tenant" (None and "").

    Raises:
        TenantInvalid: It is of another type (bool and float included: a rounded or truthy id
            would charge the wrong tenant), is no valid text, or is longer than 200 bytes.
    """
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, (str, int, UUID)):
        raise TenantInvalid(f"{_EXPECTED}, got: {type(value).__name__}")
    try:
        tenant = str.__str__(value) if isinstance(value, str) else str(value)
        size = len(tenant.encode())
    except UnicodeEncodeError:
        raise TenantInvalid("expected text that is valid UTF-8, got: lone surrogates") from None
    except ValueError:
        # Python refuses to write a whole number of more than 4300 digits.
        raise TenantInvalid(f"expected at most {TENANT_BYTES} bytes, got: more") from None
    if size > TENANT_BYTES:
        raise TenantInvalid(f"expected at most {TENANT_BYTES} bytes, got: {size}")
    return tenant


#: What stands for the service of tasks without one, where each service counts apart: else the
#: tenant ``a:b`` would have the key of tenant ``a`` in service ``b``.
NO_SERVICE = "_"
_SERVICE = re.compile(r"[A-Za-z0-9_-]{1,100}")


def key_part(tenant: str) -> str:
    """Return ``tenant`` as it is written in keys.

    Text outside the key pattern, longer than 120 characters, or beginning with ``h_`` becomes
    ``h_`` and the first 32 hex digits of its SHA-256, so no tenant can spell another's key.
    """
    plain = (
        len(tenant) <= PLAIN_CHARACTERS
        and not tenant.startswith("h_")
        and KEY_PATTERN.fullmatch(tenant)
    )
    if plain:
        return tenant
    return key_hash(tenant)


def key_hash(text: str) -> str:
    """Return ``h_`` and the first 32 hex digits of the SHA-256 of ``text``."""
    return "h_" + hashlib.sha256(text.encode()).hexdigest()[:32]


def tier_key(tenant: str, service: str | None = None) -> str:
    """Return the key of a tenant's tier limit: ``tenant:{tenant}``, with a service where given.

    Args:
        tenant: A tenant, or one of the reserved two.
        service: Given with ``tier_scope="service"``, where each service counts apart.
    """
    part = tenant if isinstance(tenant, Reserved) else key_part(tenant)
    return f"tenant:{part}:{service}" if service else f"tenant:{part}"


def read_tier_key(key: str, by_service: bool) -> tuple[str, str | None] | None:
    """Return tenant and service of a tier limit's key as people type it; None: it is none.

    Args:
        key: Such as ``tenant:42``.
        by_service: Each service counts apart. A key without one is then that of the tenant as a
            whole, which may be paused; the last part of one with a colon is a service.
    """
    kind, _, name = key.partition(":")
    if kind != "tenant" or not name:
        return None
    if not by_service or ":" not in name:
        return name, None
    tenant, _, service = name.rpartition(":")
    return (tenant, service) if tenant and _SERVICE.fullmatch(service) else None


def reserved(tenant: str) -> str:
    """Return ``tenant``, as it stands in keys where it is typed so: a reserved one, or a hash.

    For people, who type what they are shown: what comes from a message never passes through here.
    """
    as_shown = tenant in (NONE, INVALID) or _HASH.fullmatch(tenant)
    return Reserved(tenant) if as_shown else tenant
