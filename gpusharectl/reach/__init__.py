"""How a command reaches the cluster, an extender and the plugins."""
