"""The scheduler extender: which card, and binding to it."""
