"""Tests on a real cluster; a package, so that shared clusters end with its last test."""
