"""Output, errors and streams of the command line."""
