"""What pods request, and what free GPUs are worth to such pods."""
