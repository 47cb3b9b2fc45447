"""What all tests share."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

pytest_plugins = ["pytester"]

# The same examples every time, and none of them judged by how fast this machine happens to be.
settings.register_profile(
    "steady",
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("steady")
