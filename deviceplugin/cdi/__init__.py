"""CDI files, and whether this node uses them."""
