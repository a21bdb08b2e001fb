"""In which order gated pods and gangs get room, and how much of it their namespaces may use."""
