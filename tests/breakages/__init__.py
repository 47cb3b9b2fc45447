"""Breakages planted by behaviour, in this process: what a careless change would do.

A breakage is a patch of one behaviour, or words replaced in a script of a store, and the promise
that must fail while it is planted. None names a line of Python.
"""
