"""The kubelet's pods and its device checkpoint."""
