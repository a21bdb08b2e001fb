"""Cards, shares and what a pod requires of them: values that never change."""
