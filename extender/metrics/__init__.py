"""Counters and collectors for Prometheus."""
