"""Version v1beta1, the only one that kubelets accept."""
