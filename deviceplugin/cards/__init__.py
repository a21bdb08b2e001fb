"""This node's cards: survey, health, device list and state file."""
