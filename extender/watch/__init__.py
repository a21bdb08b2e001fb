"""What the extender knows about the cluster from its watches."""
