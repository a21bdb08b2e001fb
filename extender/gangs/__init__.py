"""What the leader does for gangs: plan, hold, release, repair, undo."""
