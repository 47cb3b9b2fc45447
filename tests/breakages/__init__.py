"""Breakages planted by behaviour, in this process: what a careless change of the runtime would do.

Unlike those of `tests.mutants` they name no source lines: a breakage is a patch of one behaviour
and the promise that must fail while it is planted.
"""
