"""Kueue and controllers of jobs in the local cluster."""
