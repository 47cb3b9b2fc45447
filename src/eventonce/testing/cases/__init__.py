"""The cases of every store, one sentence a function; `contract` collects them."""

from __future__ import annotations

import sys
from pkgutil import iter_modules

if "pytest" in sys.modules:
    # pytest then explains their assertions. A spawned worker needs neither.
    import pytest

    pytest.register_assert_rewrite(*(f"{__name__}.{it.name}" for it in iter_modules(__path__)))
