"""Interfaces of the kubelet that device plugins speak."""
