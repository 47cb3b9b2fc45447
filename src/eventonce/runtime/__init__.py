"""The runtime, which runs plans: threads, event loops, leases and the calls to a store."""
