"""A fake API: 20,000 tokens in any ten seconds, and HTTP 429 for a call above them.

It counts what a call reserves when it comes, and what it has used when it ends. It writes each call
to a file, one JSON object in a line.
"""

import json
import os
import random
import sys
import threading
import time
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

BUDGET, WINDOW_SECONDS = 20_000, 10.0


class Meter:
    """Counts tokens in a sliding window."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: deque[dict[str, Any]] = deque()

    def reserve(self, tokens: int) -> tuple[dict[str, Any] | None, float]:
        """Return the entry of a call. If the window has no room: None, and for how long."""
        with self._lock:
            now = time.time()
            while self._calls and self._calls[0]["at"] <= now - WINDOW_SECONDS:
                self._calls.popleft()
            if sum(each["tokens"] for each in self._calls) + tokens > BUDGET:
                return None, self._calls[0]["at"] + WINDOW_SECONDS - now
            self._calls.append({"at": now, "tokens": tokens})
            return self._calls[-1], 0.0


METER = Meter()


class Api(BaseHTTPRequestHandler):
    """Answers one call."""

    def do_POST(self) -> None:
        """Reserve tokens, take some time, and use between a half and all of them."""
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        call, wait = METER.reserve(asked["most_tokens"])
        if call is None:
            self._note(asked, 429, 0)
            self._answer(429, {}, {"Retry-After": str(int(wait) + 1)})
            return
        time.sleep(random.uniform(0.05, 0.15))
        used = random.randint(asked["most_tokens"] // 2, asked["most_tokens"])
        call["tokens"] = used
        self._note(asked, 200, used)
        self._answer(200, {"used_tokens": used}, {})

    def _answer(self, code: int, body: dict[str, Any], headers: dict[str, str]) -> None:
        data = json.dumps(body).encode()
        self.send_response(code)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def _note(self, asked: dict[str, Any], code: int, used: int) -> None:
        line = {"at": time.time(), "customer": asked["customer"], "code": code, "used": used}
        with open(os.environ.get("API_CALLS", "calls.jsonl"), "a", encoding="utf-8") as calls:
            calls.write(json.dumps(line) + "\n")

    def log_message(self, *_: Any) -> None:
        """Write nothing: the file of calls has all."""


class Server(ThreadingHTTPServer):
    """Takes the connections of many workers at once. The default resets some of them above five."""

    request_queue_size = 128


if __name__ == "__main__":
    Server(("127.0.0.1", int(sys.argv[1])), Api).serve_forever()
