"""Tell what a cluster that does not share its GPUs by memory yet would gain if it did."""
