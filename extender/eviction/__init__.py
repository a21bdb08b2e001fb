"""Which pods are evicted, and their eviction."""
