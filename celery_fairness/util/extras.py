"""The command that installs what an extra of this package adds.

It names the packages of the extra, and not this package, which may have been installed from a file.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, requires


def install_command(extra: str) -> str:
    """Return a command such as ``pip install 'textual<9,>=8'``.

    Args:
        extra: Its name in setup.cfg.
    """
    try:
        asked = requires("celery-fairness") or ()
    except PackageNotFoundError:
        # The program was packed without the metadata of its packages.
        return f"pip install the packages of the extra {extra!r}"
    wanted = [each.partition(";")[0].strip() for each in asked if f'extra == "{extra}"' in each]
    return "pip install " + " ".join(f"'{each}'" for each in wanted)
