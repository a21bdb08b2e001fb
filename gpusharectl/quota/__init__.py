"""gpushare quota."""
