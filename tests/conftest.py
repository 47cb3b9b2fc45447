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
# For `make quick`: the first of the same examples.
settings.register_profile("quick", settings.get_profile("steady"), max_examples=15)
settings.load_profile("steady")
