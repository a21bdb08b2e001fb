"""Kubernetes objects as typed values: only the fields that gpushare reads."""
