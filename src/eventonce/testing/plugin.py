"""The pytest plugin: tests your own handler with copies, reorderings and a crash.

```python
def test_a_copy_and_a_crash_close_the_call_once(eventonce):
    eventonce.deliver(event, to=wrap_up, copies=3, crash_after="effect")
    assert crm.closed == ["call-1"]
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from eventonce.testing.harness import Harness


@pytest.fixture
def eventonce() -> Harness:
    """Return a harness: a memory store, a manual clock, and `deliver`."""
    # Imported late: pytest loads plugins before it can measure or patch their imports.
    from eventonce.testing.harness import Harness  # noqa: PLC0415

    return Harness()
