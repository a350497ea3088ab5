"""The Celery app: prompts of customers go to an API that sells tokens by the minute."""

import json
import os
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from celery import Celery

from celery_fairness import Fairness, FairTask, RateLimitExceeded, RateLimitPolicy

REDIS = os.environ.get("REDIS_URL", "redis://localhost:6379/0")
API = os.environ.get("API_URL", "http://localhost:8001")
#: What the API sells, in a longer window: a call comes there a moment after the start of its task.
TOKENS = RateLimitPolicy("llm:tokens", rate="20000/PT10.3S", units="args.most_tokens")

app = Celery("shop", broker=f"fair{REDIS}", backend=REDIS)
app.conf.fairness = {
    "tiers": {"free": {"concurrency": 4}, "pro": {"concurrency": 8}},
    "tier_resolver": "shop:tier_of",
}
fairness = Fairness(app)


def tier_of(customer: str) -> str | None:
    """Return the plan of a customer; None is the default tier, free."""
    return {"petra": "pro"}.get(customer)


@app.task(base=FairTask, tenant="customer", limits=[TOKENS], ignore_result=True)
def complete(prompt: str, most_tokens: int, customer: str) -> None:
    """Let the API complete a prompt. It may use fewer tokens than it reserves."""
    body = json.dumps({"prompt": prompt, "most_tokens": most_tokens, "customer": customer})
    request = Request(API, body.encode(), {"Content-Type": "application/json"})
    try:
        with urlopen(request, timeout=30) as answer:
            found: dict[str, Any] = json.load(answer)
    except HTTPError as error:
        if error.code != 429:
            raise
        # The task waits with all others, and no retry is spent.
        raise RateLimitExceeded(key=TOKENS.key, retry_after=error.headers["Retry-After"]) from error
    # What the API did not use is free for the next task at once.
    fairness.limits.used(TOKENS.key, found["used_tokens"])
