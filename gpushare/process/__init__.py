"""Parts of a long-running program: its lifetime, flags, threads and time slices."""
