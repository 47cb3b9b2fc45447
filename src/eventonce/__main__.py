"""`python -m eventonce` is the command line."""

from eventonce.cli import main

main()
