"""Mutation testing: change the code in every small way, one at a time; does a test fail?"""
