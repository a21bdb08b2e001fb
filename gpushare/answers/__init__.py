"""Answers about GPUs and pods as JSON, for the extender and the command line (pure)."""
