"""The device plugin: what a GPU node tells the kubelet, and which card a container gets."""
