"""GetPreferredAllocation, Allocate and PreStartContainer: which container gets which GPU."""
