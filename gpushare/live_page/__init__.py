"""The live page: its files, and the events that keep it up to date."""
