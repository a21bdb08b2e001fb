"""What people are told of cards and pods, as JSON: by extender and command line (pure)."""
