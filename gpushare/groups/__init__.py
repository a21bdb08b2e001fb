"""Which pods belong together as a gang, and how many of them are needed."""
