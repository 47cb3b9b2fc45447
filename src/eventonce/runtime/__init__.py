"""The runtime, which runs plans: threads, event loops, leases and the calls of a store."""
