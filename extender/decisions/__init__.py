"""The decisions behind kube-scheduler's calls: filter, prioritize, preempt."""
