"""Quotas, fairness and order of the queue, on paper nodes, while programs are killed."""
