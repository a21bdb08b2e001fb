"""The live page and its stream of changes."""
