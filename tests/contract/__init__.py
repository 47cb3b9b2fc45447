"""The stores, each held to the contract of `eventonce.testing`."""

FEWER = 50
"""Programs where it is the way to the server, or its age, that differs, not what it is told."""
