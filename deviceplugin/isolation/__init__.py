"""What keeps a container to its share of a GPU's memory, and whether it does."""
