"""The address of the limiter's Redis, read from a URL or from a Celery app's broker.

The first of these applies:

1. the setting ``redis_url`` or the variable ``FAIRNESS_REDIS_URL``
2. the broker that workers read, if that is Redis, also with Sentinel or TLS
3. a start-up error that names the variable

The result backend is never used. The text and the repr of an address have no password.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from redis.connection import parse_url

from celery_fairness.errors import SettingsError

NO_REDIS = (
    "FAIRNESS_REDIS_URL: expected the address of a Redis for the limiter, because the broker "
    "({broker}) is not Redis, got: nothing; "
    "for example FAIRNESS_REDIS_URL=redis://localhost:6379/1"
)
UNREADABLE = (
    "{setting}: expected a port that is a number, and a password whose '/', '?', '#', ';', '[' and "
    "']' are percent-encoded, got: another"
)


#: The scheme of each node of a cluster for redis-py.
CLUSTERS = {"cluster": "redis", "clusters": "rediss"}
#: The scheme of each server of a list whose servers have different partitions.
DIVIDED = "servers"


@dataclass(frozen=True, slots=True)
class Address:
    """One Redis, a Sentinel group, a cluster, or a list of servers of which one is used.

    Attributes:
        urls: URLs for redis-py: one server, a list of servers in the order of tries, the Sentinels
            of a group, or some nodes of a cluster.
        options: Further arguments of the client: TLS, credentials.
        master_name: The name of the Sentinel group. "" for a server.
        setting: The setting that has it: ``redis_url`` or ``broker_url``.
        is_cluster: Whether the servers are nodes of a cluster.
        of_broker: Whether it is a ``fairredis`` broker, which always has the limits too.
        is_divided: Whether each of the servers has its own partitions. The first has the home too.
    """

    urls: tuple[str, ...] = field(repr=False)
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    master_name: str = ""
    setting: str = field(default="redis_url", compare=False)
    of_broker: bool = field(default=False, compare=False)
    is_cluster: bool = False
    is_divided: bool = False

    def nodes(self) -> list[tuple[str, int]]:
        """Return host and port of each server."""
        parts = (urlsplit(url) for url in self.urls)
        # kombu percent-encodes an IPv6 address.
        return [(unquote(each.hostname or "localhost"), each.port or 6379) for each in parts]

    def url(self, number: int) -> str:
        """Return the URL of one server of a list.

        A server without a user, a password or a database of its own has those of the first.
        """
        first, own = urlsplit(self.urls[0]), urlsplit(self.urls[number])
        user, at, _ = first.netloc.rpartition("@")
        netloc = own.netloc if "@" in own.netloc else f"{user}{at}{own.netloc}"
        path, query = own.path.strip("/") or first.path.strip("/"), own.query or first.query
        return urlunsplit(own._replace(netloc=netloc, path=f"/{path}", query=query))

    def url_of_node(self, node: tuple[str, int]) -> str:
        """Return the URL of a node of a cluster, with the user of the first address."""
        parts = urlsplit(self.urls[0])
        user, at, _ = parts.netloc.rpartition("@")
        host = f"[{node[0]}]" if ":" in node[0] else node[0]
        return urlunsplit(parts._replace(netloc=f"{user}{at}{host}:{node[1]}"))

    def params(self, number: int) -> dict[str, Any]:
        """Return redis-py's parameters of one server of a list: where it is, and its user."""
        given: dict[str, Any] = parse_url(self.url(number))  # type: ignore[no-untyped-call]
        names = ("db", "username", "password")
        host, port = self.nodes()[number]
        return {"host": host, "port": port} | {
            name: value for name, value in given.items() if name in names
        }

    def check_partitions(self, count: int) -> None:
        """Check that each server of a list has a partition.

        Raises:
            SettingsError: There are fewer partitions than servers.
        """
        if self.is_divided and count < len(self.urls):
            raise SettingsError(
                f"fairness.partitions: expected at least {len(self.urls)}, one for each server of "
                f"{self.setting}, got: {count}"
            )

    def __str__(self) -> str:
        hidden = [hide_password(url) for url in self.urls]
        if self.is_cluster:
            # The scheme that a person has written.
            schemes = {of_node: scheme for scheme, of_node in CLUSTERS.items()}
            parts = (url.partition("://") for url in hidden)
            hidden = [f"{schemes[scheme]}://{rest}" for scheme, _, rest in parts]
        if self.is_divided:
            hidden = [f"{DIVIDED}://{url.partition('://')[2]}" for url in hidden]
        return ";".join(hidden)

    __repr__ = __str__


def hide_password(url: str) -> str:
    """Return ``url`` without user, password and query, even if it is malformed."""
    parts = _split(url)
    if parts is not None:
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    # Only the text behind the last "@" is surely no part of the password.
    scheme, _, rest = url.partition("://")
    _, at, host = rest.rpartition("@")
    return f"{scheme}://{host.partition('?')[0].partition('#')[0] if at else '…'}"


def address_from_url(
    text: str,
    options: Mapping[str, Any] | None = None,
    master_name: str = "",
    setting: str = "redis_url",
) -> Address:
    """Read the setting ``redis_url`` or a broker URL.

    Args:
        text: URLs of ``redis://``, ``rediss://``, ``unix://`` or ``redis+socket://``, joined by
            ``;``, or ``sentinel://host:port;sentinel://…?master_name=NAME``, or nodes of a cluster
            as ``cluster://host:port;…``, with TLS ``clusters://host:port;…``.
        options: Further arguments of the client.
        master_name: The name of the Sentinel group if the URL lacks it.
        setting: The setting that has it, for messages.

    Raises:
        SettingsError: A URL cannot be read, a Sentinel address has no master name, or an address
            of a cluster names a database.
    """
    scheme = text.partition("://")[0]
    # Kombu too allows a list in which only the first has the scheme.
    urls = tuple(
        part if "://" in part else f"{scheme}://{part}" for part in text.split(";") if part
    )
    for url in urls:
        if _split(url) is None:
            problem = UNREADABLE.format(setting=setting)
            raise SettingsError(f"{problem}, for {hide_password(url)}")
    extra = dict(options or {})
    is_cluster = scheme in CLUSTERS
    if is_cluster:
        for url in urls:
            if url.partition("://")[0] != scheme:
                raise SettingsError(
                    f"{setting}: expected the same scheme before each node of a cluster, "
                    f"got: {hide_password(urls[0])} and {hide_password(url)}"
                )
        urls = tuple(_node_url(url, setting) for url in urls)
    is_divided = scheme == DIVIDED
    if is_divided:
        urls = tuple(f"redis://{url.partition('://')[2]}" for url in urls)
    if scheme != "sentinel":
        given = dict(extra)
        first = _plain_url(urls[0], extra)
        urls = (first, *(_plain_url(url, dict(given)) for url in urls[1:]))
        return Address(urls, extra, setting=setting, is_cluster=is_cluster, is_divided=is_divided)
    query = dict(parse_qsl(urlsplit(urls[-1]).query))
    name = query.get("master_name", master_name)
    if not name:
        raise SettingsError(
            f"{setting}: expected the name of the Sentinel group as ?master_name=NAME or in "
            "broker_transport_options['master_name'], got: nothing"
        )
    return Address(urls, extra, name, setting)


def address_from_broker(app: Any) -> Address:
    """Read the address from the broker that the workers of a Celery app read.

    Raises:
        SettingsError: The broker is not Redis, kombu has no such transport, or kombu cannot read
            the URL.
    """
    try:
        connection = app.connection_for_read()
        transport_cls = connection.get_transport_cls()
    except KeyError as error:
        raise SettingsError(
            "broker_url: expected a transport of kombu, such as fairredis://localhost:6379/0, "
            f"got: {error.args[0]}"
        ) from None
    except ValueError:
        # The error itself may contain a part of the password.
        raise SettingsError(UNREADABLE.format(setting="broker_url")) from None
    if transport_cls.driver_type != "redis":
        raise SettingsError(NO_REDIS.format(broker=connection.as_uri()))
    configured = app.conf.broker_read_url
    text = configured if isinstance(configured, str) else ";".join(configured)
    ssl = connection.ssl if isinstance(connection.ssl, Mapping) else None
    return _address_of(connection, text, "broker_url", ssl)


def address_of_other(app: Any, text: str, setting: str) -> Address:
    """Read the broker URL of another installation.

    It has the transport options of the app, such as the name of a Sentinel group. If its scheme has
    TLS, it has those of the app too.

    Args:
        app: The app.
        text: The broker URL.
        setting: The option that has it, for messages.

    Raises:
        SettingsError: The URL cannot be read.
    """
    connection = app.connection_for_read()
    scheme = text.partition("://")[0]
    has_tls = scheme.removeprefix("fair") in ("rediss", "clusters", DIVIDED)
    ssl = connection.ssl if has_tls and isinstance(connection.ssl, Mapping) else None
    return _address_of(connection, text, setting, ssl)


def _address_of(connection: Any, text: str, setting: str, ssl: Mapping[str, Any] | None) -> Address:
    """Return the address of a broker URL, with the transport options of a connection of kombu."""
    # The names of our transports are those of the stock ones after "fair".
    text = ";".join(url.removeprefix("fair") for url in text.split(";"))
    transport = connection.transport_options or {}
    options: dict[str, Any] = {}
    if ssl is not None:
        options.update(ssl)
        options.setdefault("ssl", True)
    provider = transport.get("credential_provider")
    if provider is not None:
        options["credential_provider"] = _loaded(provider)
    if text.startswith("sentinel://"):
        options["sentinel_kwargs"] = transport.get("sentinel_kwargs") or {}
    return address_from_url(text, options, transport.get("master_name", ""), setting)


def _split(url: str) -> SplitResult | None:
    """Return the parts of ``url``, None if they may have cut a password in two."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return None
    names = (name for name, _ in parse_qsl(parts.query, keep_blank_values=True))
    rest = [parts.fragment, *names]
    is_socket = parts.scheme == "unix" or parts.scheme.endswith("+socket")
    if not is_socket or (parts.netloc and "@" not in parts.netloc):
        rest.append(parts.path)
    return None if any("@" in each for each in rest) else parts


def _loaded(provider: Any) -> Any:
    if not isinstance(provider, str):
        return provider
    from kombu.utils.imports import symbol_by_name

    return symbol_by_name(provider)()


def _node_url(url: str, setting: str) -> str:
    """Return the URL for redis-py of a node of a cluster."""
    parts = urlsplit(url)
    database = parts.path.strip("/")
    if database not in ("", "0"):
        raise SettingsError(
            f"{setting}: expected no database or 0, because a cluster has only that one, "
            f"got: {database!r} in {hide_password(url)}"
        )
    scheme = CLUSTERS.get(parts.scheme, parts.scheme)
    return urlunsplit(parts._replace(scheme=scheme))


def _plain_url(url: str, options: dict[str, Any]) -> str:
    """Return ``url`` in redis-py's form. Kombu's own names in the query become ``options``."""
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query))
    number = parts.path.strip("/")
    if parts.scheme in ("redis", "rediss") and number and not number.isdecimal():
        raise SettingsError(
            f"{hide_password(url)}: expected the number of a database behind the last '/', "
            f"got: {number!r}"
        )
    requirement = options.get("ssl_cert_reqs", query.pop("ssl_cert_reqs", None))
    if isinstance(requirement, str):
        options["ssl_cert_reqs"] = requirement.lower().removeprefix("cert_")
    if options.pop("ssl", None) and parts.scheme == "redis":
        parts = parts._replace(scheme="rediss")
    if parts.scheme == "redis+socket":
        database = query.pop("virtual_host", None)
        if database is not None:
            query["db"] = unquote(database).strip("/")
        parts = parts._replace(scheme="unix")
    if parts.scheme == "unix":
        # urlunsplit leaves out the empty host, which redis-py needs.
        return f"unix://{parts.netloc}{parts.path}?{urlencode(query)}".rstrip("?")
    return urlunsplit(parts._replace(query=urlencode(query)))
