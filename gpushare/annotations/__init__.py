"""The only reader and writer of gpushare's annotations on pods and nodes."""
