"""How much GPU memory the pods of a namespace may use."""
