"""Every placement decision, without I/O."""
