"""Search for room for members that differ, if they do not fit one after the other."""
