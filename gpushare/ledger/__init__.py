"""Account for the units that pods use of each card."""
