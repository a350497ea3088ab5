#!/usr/bin/env python
"""Django's command line for the demo site.

Invariant: it works from any folder.

Weakness: it needs the project's environment, which ``make setup`` makes.
"""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run one management command."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "demo_site.settings")
    try:
        from django.core.management import execute_from_command_line
    except ImportError:
        sys.exit("Django is not installed here: run 'make setup', then use .venv/bin/python")
    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
