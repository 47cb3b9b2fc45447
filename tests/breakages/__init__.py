"""Breakages planted by behaviour, in this process: the mistakes that a careless change would make.

A breakage is a patch of one behaviour, or words replaced in a script of a store, and the promise
that must fail while it is planted. No breakage names a line of Python.
"""
