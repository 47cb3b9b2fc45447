"""For tests: the contract every store is held to (`contract`), the simulator, the pytest plugin.

Importing this package imports none of them: each wants pytest or Hypothesis, and a program that
only runs events has neither.
"""
