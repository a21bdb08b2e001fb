"""Helpers of long-running programs: lifetime, flags, threads and time slices."""
