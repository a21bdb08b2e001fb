"""The type of options that take a whole number."""

import click


class WholeNumber(click.IntRange):
    """Accept integers in a range; of "8Gi", say that it is no integer, not no "integer range"."""

    name = "integer"
