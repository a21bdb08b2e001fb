"""Decide which pods to evict so that a more important pod or gang fits."""
