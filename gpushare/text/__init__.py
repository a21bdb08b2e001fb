"""Helpers for texts: numbers with nouns, YAML."""
