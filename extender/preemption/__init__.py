"""What the leader does so that pods of a lower priority make room for a pod or a gang."""
