"""The steps of a simulation on the live page."""
