"""The core that the extender, the device plugin and the command line share."""
