"""gpushare doctor: facts of a cluster, checks of them, and findings with their fixes."""
