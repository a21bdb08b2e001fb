"""The gRPC service, its registration, and outages of the kubelet."""
