"""What the leader writes so that autoscalers add nodes that gpushare needs."""
