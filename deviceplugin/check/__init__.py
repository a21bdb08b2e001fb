"""Checks of this node's setup."""
