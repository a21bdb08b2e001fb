"""What the calls that admit a pod and the call that starts its containers both use."""

from dataclasses import dataclass

from deviceplugin.allocation.injection import Injections
from deviceplugin.cards.node_cards import NodeCards
from deviceplugin.cdi.spec_files import Specs
from deviceplugin.kubelet.checkpoint import CheckpointFile
from deviceplugin.kubelet.pods_endpoint import PodSource
from deviceplugin.kubelet.watched_pods import NodePods


@dataclass(frozen=True, slots=True)
class Sources:
    cards: NodeCards
    kubelet: PodSource
    watch: NodePods
    checkpoint: CheckpointFile
    specs: Specs
    injections: Injections
