"""The broker transport that claims fairly.

Its schemes are in kombu's table from ``import celery_fairness`` on. Kombu has no entry point for
them, and the import of this package must not load kombu. So :func:`register_with_kombu` fills the
table at once if kombu is loaded, and otherwise as soon as a program loads it.
"""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["SentinelTransport", "TLSTransport", "Transport", "register"]

#: Our transport for each of our schemes.
TRANSPORTS = {
    "fairredis": "Transport",
    "fairrediss": "TLSTransport",
    "fairsentinel": "SentinelTransport",
}
#: Kombu's module that has the table.
_TABLE = "kombu.transport"


def register() -> None:
    """Put ``fairredis``, ``fairrediss`` and ``fairsentinel`` into kombu's table."""
    from kombu.transport import TRANSPORT_ALIASES

    for scheme, name in TRANSPORTS.items():
        TRANSPORT_ALIASES[scheme] = f"celery_fairness.transport.schemes:{name}"


def register_with_kombu() -> None:
    """Register the schemes now if kombu is loaded, and otherwise as soon as it is."""
    if _TABLE in sys.modules:
        register()
    else:
        sys.meta_path.insert(0, _WhenLoaded())


class _WhenLoaded:
    """A finder that finds only kombu's table, once, and registers the schemes after its import."""

    def find_spec(self, name: str, *_: Any) -> Any:
        if name != _TABLE:
            return None
        from importlib.util import find_spec

        sys.meta_path.remove(self)
        spec = find_spec(name)
        loader: Any = spec and spec.loader
        if loader is not None:
            execute = loader.exec_module

            def exec_module(module: Any) -> None:
                execute(module)
                register()

            loader.exec_module = exec_module
        return spec


def __getattr__(name: str) -> Any:
    if name in TRANSPORTS.values():
        from celery_fairness.transport import schemes

        return getattr(schemes, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
