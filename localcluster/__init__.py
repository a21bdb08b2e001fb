"""A real Kubernetes on one machine, without a container engine.

`Cluster.up` builds and starts it, `Cluster.down` leaves nothing behind.
"""

from localcluster.cluster import Cluster, NodeSpec, PaperNode
from localcluster.errors import LocalClusterError

__all__ = ["Cluster", "LocalClusterError", "NodeSpec", "PaperNode"]
