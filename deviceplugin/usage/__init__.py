"""Measured memory by pod, and metrics of GPUs."""
