"""Judge kube-scheduler's preemptions, and keep what is known about the extender's own."""
