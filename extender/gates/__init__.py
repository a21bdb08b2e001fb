"""Which new pods wait behind a scheduling gate, and how they are released."""
