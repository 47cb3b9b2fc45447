"""The check of a whole set-up: `look` asks AWS and the store once, and `checks` judges the answers.

A check is a function from facts to findings. It sends no request, so that facts alone can test it.
"""
