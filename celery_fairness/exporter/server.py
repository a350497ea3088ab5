"""A small HTTP server for the metrics: ``/metrics`` and ``/autoscale``.

It has no password, so it listens on this host alone unless the caller names another address.

Weakness: a client that reads slowly holds a thread until :data:`CLIENT_SECONDS` are over.
"""

from __future__ import annotations

import json
import signal
import socket
import socketserver
import sys
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from celery_fairness.errors import LimiterUnavailable
from celery_fairness.exporter.collector import Exposition

#: Longest wait for a client, in seconds.
CLIENT_SECONDS = 10.0
#: Signals that end the server.
ENDS = (signal.SIGINT, signal.SIGTERM)

Answer = tuple[HTTPStatus, str, bytes]


class MetricsServer(ThreadingHTTPServer):
    """Serves one installation.

    Args:
        exposition: Makes the answers.
        address: The address on which it listens.
        port: Its port. 0 chooses a free one.

    Raises:
        OSError: It cannot listen there.
    """

    daemon_threads = True
    # Another process may not share the port.
    allow_reuse_port = False

    def __init__(self, exposition: Exposition, address: str, port: int) -> None:
        if ":" in address:
            self.address_family = socket.AF_INET6
        self.exposition = exposition
        super().__init__((address, port), _Handler)

    def server_bind(self) -> None:
        """Bind the socket, without a question to the name server."""
        # HTTPServer looks up its own name, which may take seconds.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print the traceback of an error, unless the client has gone away.

        The probe of a load balancer does so, and a scrape that was given up.
        """
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        """The address of the server for people."""
        host, port = self.server_address[:2]
        text = host.decode() if isinstance(host, bytes) else str(host)
        return f"http://{f'[{text}]' if ':' in text else text}:{port}"


def serve(server: MetricsServer, started: Callable[[], None]) -> None:
    """Serve until a signal ends this process. The main thread calls it."""
    ended = threading.Event()

    def end(_number: int, _frame: Any) -> None:
        ended.set()

    before = {number: signal.signal(number, end) for number in ENDS}
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1})
    thread.start()
    try:
        started()
        ended.wait()
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        for number, handler in before.items():
            signal.signal(number, handler)


class _Handler(BaseHTTPRequestHandler):
    timeout = CLIENT_SECONDS
    server: MetricsServer
    server_version = "celery-fairness"
    sys_version = ""

    def do_GET(self) -> None:
        status, content_type, body = self._answer()
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, *_: Any) -> None:
        """Log nothing: a scrape comes every few seconds."""

    def _answer(self) -> Answer:
        try:
            url = urlsplit(self.path)
        except ValueError:
            return _json(HTTPStatus.BAD_REQUEST, "expected an address without '[' and ']'")
        if url.path == "/metrics":
            accept = self.headers.get("Accept", "")
            return HTTPStatus.OK, *self.server.exposition.metrics(accept)
        if url.path != "/autoscale":
            return _json(HTTPStatus.NOT_FOUND, "expected /metrics or /autoscale?queue=NAME")
        queue = parse_qs(url.query, keep_blank_values=True).get("queue", [None])[0]
        try:
            return HTTPStatus.OK, "application/json", self.server.exposition.loads(queue)
        except LimiterUnavailable as error:
            return _json(HTTPStatus.SERVICE_UNAVAILABLE, str(error))


def _json(status: HTTPStatus, problem: str) -> Answer:
    return status, "application/json", json.dumps({"error": problem}).encode()
