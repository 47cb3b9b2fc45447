"""The packages that an example needs: if one is missing, one line names it."""

from __future__ import annotations

import sys
from importlib.util import find_spec


def needed(*modules: str, install: str) -> None:
    """End here, with what to type, unless all of these are installed."""
    missing = [name for name in ("eventonce", *modules) if find_spec(name) is None]
    if missing:
        sys.exit(
            f"this example needs {', '.join(missing)}: in the clone of eventonce, "
            f"`pip install {install}`, or `make examples`, which installs and runs all of them"
        )
