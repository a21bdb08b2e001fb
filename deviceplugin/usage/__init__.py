"""Memory that processes really use, per pod."""
