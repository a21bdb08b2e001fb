"""This node's GPUs: survey, health, device list and state file."""
