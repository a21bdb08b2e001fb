"""The scheduler extender: which node and GPU a pod gets, and its binding."""
