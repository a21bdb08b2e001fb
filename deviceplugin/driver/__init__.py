"""The GPU driver: its interface, and NVML behind it."""
