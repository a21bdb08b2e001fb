"""What keeps a container to its share of a GPU's memory."""
