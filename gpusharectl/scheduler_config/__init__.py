"""gpushare scheduler-config."""
