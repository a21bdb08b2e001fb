"""Measures how much of a cluster's GPUs different ways to place pods can allocate."""
