"""For tests: the contract of every store (`contract`), the simulator, and the pytest plugin.

Importing this package imports none of them: each needs pytest or Hypothesis, which a program that
only runs events does not have.
"""
