"""Read nodes, namespaces, priorities and workloads from documents."""
