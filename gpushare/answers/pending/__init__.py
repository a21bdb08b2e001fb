"""Why a pod is Pending: the cause, what would help, and the sentence about it (pure)."""
