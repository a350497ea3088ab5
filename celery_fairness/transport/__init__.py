"""The broker transport that claims fairly.

Its schemes are in kombu's table from ``import celery_fairness`` on. Kombu has no entry point for
them, and the import of this package must not load kombu. So :func:`register_with_kombu` fills the
table at once if kombu is loaded, and each time that a program loads it.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

__all__ = [
    "ClusterTransport",
    "SentinelTransport",
    "ServersTransport",
    "TLSClusterTransport",
    "TLSTransport",
    "Transport",
    "register",
]

#: Our transport for each of our schemes.
TRANSPORTS = {
    "fairredis": "Transport",
    "fairrediss": "TLSTransport",
    "fairsentinel": "SentinelTransport",
    "fairservers": "ServersTransport",
    "faircluster": "ClusterTransport",
    "fairclusters": "TLSClusterTransport",
}
#: Kombu's module that has the table.
_TABLE = "kombu.transport"


def register() -> None:
    """Put our schemes into kombu's table."""
    from kombu.transport import TRANSPORT_ALIASES

    for scheme, name in TRANSPORTS.items():
        TRANSPORT_ALIASES[scheme] = f"celery_fairness.transport.schemes:{name}"


def register_with_kombu() -> None:
    """Register the schemes now if kombu is loaded, and each time that a program loads it."""
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
    if _TABLE in sys.modules:
        register()


class _WhenLoaded:
    """A finder that finds only kombu's table, and registers the schemes after each import of it.

    It stays: a program may look for the module without an import, and may load it again. Another
    thread may read the list of finders at any time, and would pass over one if this one left.
    """

    def __init__(self) -> None:
        self._here = threading.local()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        # A finder of others may begin the whole search again.
        if name != _TABLE or getattr(self._here, "searching", False):
            return None
        self._here.searching = True
        try:
            spec = self._found_by_others(name, path, target)
        finally:
            self._here.searching = False
        if hasattr(spec and spec.loader, "exec_module"):
            spec.loader = _Loader(spec.loader)
        return spec

    def _found_by_others(self, *of: Any) -> Any:
        # importlib.util.find_spec would return the spec of a module that a reload replaces.
        finders = [each for each in sys.meta_path if each is not self]
        searches = (each.find_spec(*of) for each in finders if hasattr(each, "find_spec"))
        return next((spec for spec in searches if spec is not None), None)


_FINDER = _WhenLoaded()


class _Loader:
    """The loader of kombu's table, with the registration after it.

    The loader itself stays as it is: that of an archive loads all modules in it.
    """

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def exec_module(self, module: Any) -> None:
        if module.__spec__.loader is self:
            module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        register()

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":
            # A copy has no attributes yet.
            raise AttributeError(name)
        return getattr(self._loader, name)


def __getattr__(name: str) -> Any:
    if name in TRANSPORTS.values():
        from celery_fairness.transport import schemes

        return getattr(schemes, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
