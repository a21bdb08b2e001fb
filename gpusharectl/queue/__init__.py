"""gpushare queue."""
