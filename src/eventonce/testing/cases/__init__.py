"""The cases that every store plays, one sentence a function; `contract` gathers them."""

from __future__ import annotations

import sys
from pkgutil import iter_modules

if "pytest" in sys.modules:
    # Its assertions then say what they compared. A spawned worker does without both.
    import pytest

    pytest.register_assert_rewrite(*(f"{__name__}.{it.name}" for it in iter_modules(__path__)))
