"""The pictures of the pages, each drawn from its source: `python -m pictures`.

A picture is a module here with `draw() -> str`, and is written to `docs/pictures/NAME.svg`.
"""
