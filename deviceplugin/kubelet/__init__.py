"""What the kubelet knows: its pods and its device checkpoint."""
