"""Logs, and pages for metrics and health."""
