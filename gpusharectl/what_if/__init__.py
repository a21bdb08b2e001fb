"""gpushare what-if."""
