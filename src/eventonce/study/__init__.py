"""The study of your own traffic: the events that arrive, their copies, and the effect of a rule.

Nothing here decides about live events; every key is made by the planner of production.
"""
