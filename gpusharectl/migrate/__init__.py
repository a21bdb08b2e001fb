"""gpushare migrate."""
