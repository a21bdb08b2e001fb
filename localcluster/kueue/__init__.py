"""Kueue and JobSet in the local cluster."""
