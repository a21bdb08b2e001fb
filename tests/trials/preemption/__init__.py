"""Pods are evicted for more important ones, on paper nodes, while programs are killed."""
