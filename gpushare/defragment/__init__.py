"""Decide which pods to restart elsewhere so that whole GPUs become free, or a pod or gang fits."""
