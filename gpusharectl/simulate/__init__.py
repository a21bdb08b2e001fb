"""gpushare simulate: place given pods on given nodes, without a cluster."""
