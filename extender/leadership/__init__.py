"""Which replica decides."""
