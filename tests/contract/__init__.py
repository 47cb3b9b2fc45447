"""The stores, each held to the contract of `eventonce.testing`."""

FEWER = 50
"""Number of programs where only the way to the server differs, or the server's age."""
