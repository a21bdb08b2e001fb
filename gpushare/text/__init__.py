"""Texts for people, and YAML as text."""
