"""What the plugin writes on its Node and its pods."""
