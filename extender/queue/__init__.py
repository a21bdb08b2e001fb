"""Gives gated pods and gangs room in their order, and removes their gates."""
