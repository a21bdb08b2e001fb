"""The extender's configuration file."""
