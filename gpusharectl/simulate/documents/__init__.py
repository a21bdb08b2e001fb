"""What the documents of a file say of nodes, namespaces and priorities."""
