"""The study of one's own traffic: what arrives, which copies are in it, and what a rule would do.

Nothing here decides about live events; every key is made by the planner that production uses.
"""
