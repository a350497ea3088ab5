"""The platform's two tasks: `analyze` of the service analysis, `write_view` of specview.

Invariant: a job does the same work in both runs. It is charged to its argument `user_id`, and
without one to nobody.

Weakness: both are short jobs of pure Python, so they do not represent jobs that wait for a network.
"""

from __future__ import annotations

from typing import Any

from celery import Task

from examples.code_analysis.analysis import Summary, analyze_package
from examples.code_analysis.app import FOLDER, JobTask, app, ledger
from examples.code_analysis.catalogue import find_folder
from examples.code_analysis.specview import write_markdown


@app.task(base=JobTask, bind=True, tenant="user_id", service="analysis")
def analyze(self: Task[Any, Any], package: str, user_id: str | None = None) -> Summary:
    """Parse the source of an installed package and count its definitions."""
    with ledger.running(str(self.request.id), user_id) as facts:
        summary = analyze_package(package, find_folder(package))
        facts["lines"] = summary["lines"]
    return summary


@app.task(base=JobTask, bind=True, tenant="user_id", service="specview")
def write_view(self: Task[Any, Any], summary: Summary, user_id: str | None = None) -> str:
    """Write the page about an analysis into the run's folder."""
    with ledger.running(str(self.request.id), user_id):
        path = FOLDER / "views" / f"{summary['package']}-{self.request.id}.md"
        path.write_text(write_markdown(summary), encoding="utf-8")
    return path.name
