"""The device plugin: offers a node's GPU memory to the kubelet, and assigns GPUs to containers."""
