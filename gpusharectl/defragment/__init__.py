"""gpushare defragment."""
