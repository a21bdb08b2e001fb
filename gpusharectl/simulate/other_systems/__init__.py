"""How clusters without gpushare describe their GPUs, and which pods use them."""
