#!/usr/bin/env python
"""Django's command line for the demo site.

Invariant: it works from any folder. ``site`` without DEMO_SITE_DIR has a folder of its own, which
is removed at its end.

Weakness: it needs the project's environment, which ``make setup`` makes.
"""

from __future__ import annotations

import os
import sys
from tempfile import TemporaryDirectory


def main() -> None:
    """Run one management command."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "demo_site.settings")
    try:
        from django.core.management import execute_from_command_line
    except ImportError:
        sys.exit("Django is not installed here: run 'make setup', then use .venv/bin/python")
    if sys.argv[1:2] != ["site"] or os.environ.get("DEMO_SITE_DIR"):
        execute_from_command_line(sys.argv)
        return
    # The settings read the variable when they are imported, so no command can set it.
    with TemporaryDirectory(prefix="fairness-site-") as folder:
        os.environ["DEMO_SITE_DIR"] = folder
        try:
            execute_from_command_line(sys.argv)
        except KeyboardInterrupt:
            sys.exit(130)  # Ctrl-C before the command handles it.


if __name__ == "__main__":
    main()
