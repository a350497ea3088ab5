"""The setting ``tenant_header``: a producer names the tenant in a header or property of its own.

Such a message gets the ``fairness`` header from the first process that has the setting. That is the
process that sends it, the one that puts it on ``fairredis``, or the gate. So all later steps read
the same header.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from celery_fairness.config.tenants import normalise
from celery_fairness.errors import TenantInvalid
from celery_fairness.message.headers import HEADER, Header, MadeHeader

#: The field of the header with the name of the header or property that has the tenant.
TENANT_FROM = "tenant_from"


def carried_header(
    headers: Mapping[str, Any],
    properties: Mapping[str, Any],
    names: Sequence[str],
    **fields: Any,
) -> MadeHeader | None:
    """Return the ``fairness`` header of a message that names its tenant in another way.

    The first name with a value decides. If its value cannot be a tenant, the header is invalid, and
    no later name counts.

    Args:
        headers: The message's headers.
        properties: The message's other properties.
        names: The setting ``tenant_header``.
        fields: Further fields of the header.

    Returns:
        The header. None if the message has one already, or if no name has a value.
    """
    if HEADER in headers:
        return None
    for name in names:
        for place in (headers, properties):
            try:
                tenant = normalise(place.get(name))
            except TenantInvalid as error:
                made = Header(invalid=f"{name}: {error.problem}"[:200], **fields)
            else:
                if tenant is None:
                    continue
                made = Header(tenant, **fields)
            return MadeHeader({**made.to_wire(), TENANT_FROM: name}, made)
    return None
