"""The checks of gpushare doctor."""
