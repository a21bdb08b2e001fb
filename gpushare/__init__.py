"""What both halves of gpushare must agree on, and nothing else."""
