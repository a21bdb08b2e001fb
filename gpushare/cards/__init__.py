"""Cards, inventories, shares and requests: values that never change."""
