"""Reaching the API server: transport, informers, events."""
