"""The write that binds a pod, and what became of it."""
