"""gpushare simulate: what gpushare would decide about given nodes and pods, without a cluster."""
