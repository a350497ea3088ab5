"""The lines that the benchmark of flags and caches replaces are lines of the library."""

from __future__ import annotations

import pytest

from celery_fairness.store.library import library
from tests.benchmarks import flags


@pytest.mark.parametrize("name", [*flags.FLAGS, "bounded", *flags.CACHES])
def test_a_library_without_a_flag_or_a_cache_is_another_one(name: str) -> None:
    made = flags.without(name)
    assert made.code.replace(made.name, library().name) != library().code
