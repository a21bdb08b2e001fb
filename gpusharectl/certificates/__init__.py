"""gpushare certificates."""
