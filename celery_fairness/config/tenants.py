"""Tenants: their valid values, and their form in a key.

A tenant is text of at most 200 bytes. Two are reserved. ``_none`` has all tasks without a tenant,
with ``no_tenant="shared"``. ``_invalid`` has the tasks whose tenant is invalid, which are counted
and logged, never bypassed. A user's tenant ``_none`` does not collide with them, because the
reserved two have a type of their own. If another text begins with an underscore, keys have its
hash.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any
from uuid import UUID

from celery_fairness.config.tiers import NAME
from celery_fairness.errors import TenantInvalid

#: Longest tenant, in bytes of UTF-8.
TENANT_BYTES = 200
#: Longest key, in characters.
KEY_CHARACTERS = 255
#: Longest tenant that a key has as it is, in characters.
PLAIN_CHARACTERS = 120


class Reserved(str):
    """A tenant in the form that keys have: reserved, or a hash. No value of a message is one."""

    __slots__ = ()


NONE = Reserved("_none")
INVALID = Reserved("_invalid")

#: Valid keys of the Open Job Spec, section 6.2.
KEY_PATTERN = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._:-]*")

#: The form of :func:`key_hash`.
_HASH = re.compile(r"h_[0-9a-f]{32}")


def normalise(value: Any) -> str | None:
    """Return ``value`` as a tenant; None for None and "", which mean "no tenant".

    Raises:
        TenantInvalid: It is no str, int or UUID, is no valid text, or is longer than 200 bytes.
            Bool and float are rejected too, because a rounded id is another tenant's.
    """
    if value is None or value == "":
        return None
    tenant = id_text(value)
    if (size := len(tenant.encode())) > TENANT_BYTES:
        raise TenantInvalid(f"expected at most {TENANT_BYTES} bytes, got: {size}")
    return tenant


def id_text(value: Any) -> str:
    """Return an id as text.

    Raises:
        TenantInvalid: It is no str, int or UUID, is a bool, or is no valid text.
    """
    if isinstance(value, bool) or not isinstance(value, (str, int, UUID)):
        raise TenantInvalid(f"expected str, int or UUID, got: {type(value).__name__}")
    try:
        # Plain text, also if it is an enum or another subclass of str.
        text = str.__str__(value) if isinstance(value, str) else str(value)
        text.encode()
    except UnicodeEncodeError:
        raise TenantInvalid("expected text that is valid UTF-8, got: lone surrogates") from None
    except ValueError:
        raise TenantInvalid("expected a whole number of at most 4300 digits, got: more") from None
    return text


#: The service of tasks without one, if each service counts apart. Without it the tenant ``a:b``
#: would have the key of tenant ``a`` in service ``b``.
NO_SERVICE = "_"


def key_part(tenant: str) -> str:
    """Return ``tenant`` in the form that keys have.

    A :class:`Reserved` has it already. Other text becomes a hash if it does not match the key
    pattern, is longer than 120 characters, or begins with ``h_``. So no tenant can have another
    tenant's key.
    """
    plain = (
        len(tenant) <= PLAIN_CHARACTERS
        and not tenant.startswith("h_")
        and KEY_PATTERN.fullmatch(tenant)
    )
    return tenant if plain or isinstance(tenant, Reserved) else key_hash(tenant)


def id_part(text: str) -> str:
    """Return the id or the name of a task in the form that keys have; "" for "".

    Characters without a UTF-8 form become question marks.
    """
    return key_part(text.encode(errors="replace").decode()) if text else ""


def key_hash(text: str) -> str:
    """Return ``h_`` and the first 32 hex digits of the SHA-256 of ``text``."""
    return "h_" + hashlib.sha256(text.encode()).hexdigest()[:32]


def tier_key(tenant: str, service: str | None = None) -> str:
    """Return the key of a tenant's tier limit: ``tenant:TENANT`` or ``tenant:TENANT:SERVICE``.

    Args:
        tenant: A tenant, or one of the reserved two.
        service: Set with ``tier_scope="service"``, if each service counts apart.
    """
    key = f"tenant:{key_part(tenant)}"
    return f"{key}:{service}" if service else key


def read_tier_key(key: str, by_service: bool) -> tuple[str, str | None] | None:
    """Return tenant and service of a tier limit's key; None if it is another key.

    Args:
        key: A key that an operator types, such as ``tenant:42``.
        by_service: Each service counts apart. Then a key without a service is that of the whole
            tenant, which can be paused, and a part after a second colon is the service.
    """
    kind, _, name = key.partition(":")
    if kind != "tenant" or not name:
        return None
    if not by_service or ":" not in name:
        return name, None
    tenant, _, service = name.rpartition(":")
    return (tenant, service) if tenant and NAME.accepts(service) else None


def reserved(tenant: str) -> str:
    """Return ``tenant`` as :class:`Reserved` if it has the form that keys have.

    This is for operators, who type the names that they see. Values of messages must not pass here.
    """
    as_shown = tenant in (NONE, INVALID) or _HASH.fullmatch(tenant)
    return Reserved(tenant) if as_shown else tenant
