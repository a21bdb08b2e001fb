"""What people see of the queue and of the quotas of namespaces."""
