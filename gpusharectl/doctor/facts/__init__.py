"""What the doctor knows about a cluster, as values, and what follows from it."""
