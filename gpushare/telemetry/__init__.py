"""What both programs show of themselves: logs, metrics, health."""
