"""gpushare gangs."""
