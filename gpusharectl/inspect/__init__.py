"""gpushare inspect."""
