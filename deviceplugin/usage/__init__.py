"""What each container really uses of each GPU, and metrics of GPUs."""
