"""Configuration and credentials for an API server."""
