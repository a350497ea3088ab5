"""The commands on the page about the HTTP API, pasted into a shell."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from celery import current_app
from django_celery_fairness import tokens

from celery_fairness import Fairness, FairTask, RateLimitPolicy

pytestmark = pytest.mark.django_db(transaction=True)

PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "http-api.md"


def test_the_calls_of_the_page_hold_on_any_day(claiming: Fairness, four_tiers, live_server):
    def pay() -> None:
        """Do nothing."""

    limit = RateLimitPolicy("api.stripe.com", concurrency=5)
    current_app.task(name="pay", base=FairTask, limits=[limit])(pay)
    text = PAGE.read_text()
    calls = text[text.index("## Call it") : text.index("## Watch it")]
    blocks = re.findall(r"```sh\n(.*?)```", calls, re.DOTALL)
    script = "\n".join(blocks).replace("http://localhost:8000", live_server.url)
    # Each call prints its status after its answer.
    script = 'curl() { command curl -sS -w "\\n=%{http_code}\\n" "$@"; }\n' + script
    _, token = tokens.create("deploy", "write")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-e", "-c", script],
        env=os.environ | {"PATH": path, "TOKEN": token},
        capture_output=True,
        text=True,
        check=False,
    )
    assert re.findall(r"^=(\d+)$", done.stdout, re.MULTILINE) == ["200", "200", "204", "200", "200"]
    assert done.stderr == ""
