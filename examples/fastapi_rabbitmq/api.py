"""The HTTP service: it sends tasks and returns their results.

Its functions are no coroutines, so FastAPI runs them in threads: sending a task waits for RabbitMQ.
"""

from typing import Annotated, Any

from fastapi import FastAPI, Header, HTTPException
from pydantic import BaseModel
from shop import app, fairness, report

api = FastAPI()
# It stands for your authentication: never let a caller choose its tenant.
Account = Annotated[str, Header(alias="X-Account", pattern="^[a-z0-9-]{1,100}$")]


class Wanted(BaseModel):
    """A report that somebody orders."""

    name: str


@api.post("/reports", status_code=202)
def order(wanted: Wanted, account: Account) -> dict[str, str]:
    """Send a task for the account of the request."""
    return {"id": report.delay(wanted.name, account=account).id}


@api.get("/reports/{task_id}")
def look(task_id: str, account: Account) -> dict[str, Any]:
    """Return the state of a report, and its text once it is made."""
    result = app.AsyncResult(task_id)
    if not result.successful():
        return {"state": result.state}
    made = result.result
    if made["account"] != account:
        raise HTTPException(404)
    return {"state": result.state, "text": made["text"]}


@api.get("/account")
def show_account(account: Account) -> dict[str, Any]:
    """Return how many reports of the account run and wait."""
    seen = fairness.tenants.inspect(account)
    return {"tier": seen.tier, "running": seen.held, "waiting": seen.waiting}
