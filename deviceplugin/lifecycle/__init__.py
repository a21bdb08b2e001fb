"""How one plugin replaces another, leaves and cleans up."""
