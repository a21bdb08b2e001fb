"""Find room for all pods of a gang at once."""
