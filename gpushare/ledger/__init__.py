"""Which pod uses how much of which card."""
