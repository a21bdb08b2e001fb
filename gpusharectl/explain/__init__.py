"""gpushare explain."""
