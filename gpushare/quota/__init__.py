"""How much GPU memory the pods of a namespace may use, and who gets room first."""
