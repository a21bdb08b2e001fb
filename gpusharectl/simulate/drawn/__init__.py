"""A simulation's answer and steps, written and drawn."""
