"""Decide what autoscalers must be told, because they only add up GPU memory."""
