"""The kinds, in a worker whose pool processes start only while a file is there."""

from __future__ import annotations

import os
from typing import Any

from celery.signals import worker_process_init

from tests.dispatch.kinds import app
from tests.support.shop import wait_for_file

__all__ = ["app"]


@worker_process_init.connect
def wait_to_start(**_: Any) -> None:
    """Hold a new process of the pool before it takes tasks."""
    wait_for_file(os.environ["SHOP_CHILDREN_START"], 30)
