"""Read manifests from files, with the line of each part."""
