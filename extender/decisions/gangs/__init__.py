"""Decide about gangs, and keep what is known about each."""
