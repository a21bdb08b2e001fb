"""The reader and writer of annotations on pods and nodes: the wire contract."""
