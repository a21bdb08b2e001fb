"""Which API server, and with which credentials."""
