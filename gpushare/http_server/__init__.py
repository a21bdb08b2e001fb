"""Serves HTTP within limits that all listeners of all programs have."""
