"""Define the wire names: resources, annotations, labels, variables, devices, metrics and ports.

Names that begin with ``ALIYUN_COM`` or ``scheduler.framework`` come from Aliyun gpushare. Every key
has one writer, which its comment names.
"""

from typing import Final

# Resources in a node's status and in pod limits.
RESOURCE_MEMORY: Final = "aliyun.com/gpu-mem"
RESOURCE_COUNT: Final = "aliyun.com/gpu-count"
RESOURCES_BEGIN: Final = b"aliyun.com/gpu-"  # in the JSON of every object that names one

# Pod label, user: split the amount equally over this many cards of one node.
LABEL_CARD_COUNT: Final = "aliyun.com/gpu-count"

# Pod labels and annotations, user or the controller of the pods: which pods are one gang, and how
# many of them are needed. The first two labels are coscheduling's, the third one names a PodGroup
# of scheduling.x-k8s.io, the last two names are Kueue's, which from 0.18 on reads the name of the
# group from an annotation before the label. A pod may also name a PodGroup of scheduling.k8s.io,
# in spec.schedulingGroup.
LABEL_GANG: Final = "pod-group.scheduling.sigs.k8s.io/name"
LABEL_GANG_MINIMUM: Final = "pod-group.scheduling.sigs.k8s.io/min-available"
LABEL_POD_GROUP: Final = "scheduling.x-k8s.io/pod-group"
LABEL_KUEUE_GROUP: Final = "kueue.x-k8s.io/pod-group-name"
ANNOTATION_KUEUE_GROUP: Final = LABEL_KUEUE_GROUP
ANNOTATION_KUEUE_COUNT: Final = "kueue.x-k8s.io/pod-group-total-count"
# How Kueue's scheduling gates begin.
KUEUES_GATES: Final = "kueue.x-k8s.io/"
# Pod annotation, Kueue: "true" if the group serves, so that it never completes as a whole.
ANNOTATION_KUEUE_SERVING: Final = "kueue.x-k8s.io/pod-group-serving"

# Pod labels, controllers of pods: which member of a gang matters most.
LABEL_JOB_INDEX: Final = "batch.kubernetes.io/job-completion-index"
LABEL_POD_INDEX: Final = "apps.kubernetes.io/pod-index"
LABEL_WORKER_INDEX: Final = "leaderworkerset.sigs.k8s.io/worker-index"
LABEL_REPLICA_INDEX: Final = "training.kubeflow.org/replica-index"
LABEL_JOB_ROLE: Final = "training.kubeflow.org/job-role"
# Pod label, LeaderWorkerSet: which of its groups a pod is in. Each is a gang of its own.
LABEL_WORKER_GROUP: Final = "leaderworkerset.sigs.k8s.io/group-index"
# Pod label, Deployment controller: what it adds to its name for that of the ReplicaSet.
LABEL_TEMPLATE_HASH: Final = "pod-template-hash"

# Pod annotation, user: the node label whose value is the same for all members of the gang.
ANNOTATION_GANG_ZONE: Final = "gpushare.aliyun.com/gang-zone"

# Namespace label, operator: pods that request GPU memory and members of gangs begin gated here.
LABEL_QUEUE: Final = "gpushare.aliyun.com/queue"

# Label of a pod or namespace, user or operator: "false" keeps the component avoid-gpu-nodes from
# pods without GPU.
LABEL_AVOID_GPU_NODES: Final = "gpushare.aliyun.com/avoid-gpu-nodes"

# Namespace annotation, operator: the units that the pods of the namespace may use at one time.
ANNOTATION_QUOTA: Final = "gpushare.aliyun.com/quota"

# Scheduling gate, set when a pod is created; removed by the extender once there is room.
GATE_ADMISSION: Final = "gpushare.aliyun.com/admission"

# Pod annotation, extender, written when it removes the gate: where the pod has room. A hint.
ANNOTATION_SLOT: Final = "gpushare.aliyun.com/slot"

# Pod annotation, extender: another value makes kube-scheduler try a rejected pod again.
ANNOTATION_POKE: Final = "gpushare.aliyun.com/poke"

# Pod label, user: "true" lets the extender evict the pod for a more important one if its setting
# ``preemption.victims`` is "preemptible".
LABEL_PREEMPTIBLE: Final = "gpushare.aliyun.com/preemptible"

# Pod label, user: "true" lets `gpushare defragment` evict the pod, so that the one that replaces it
# gets another place; "false" forbids it.
LABEL_MOVABLE: Final = "gpushare.aliyun.com/movable"

# Pod annotation, extender, written before the first eviction for the pod: its victims. A hint.
ANNOTATION_EVICTING: Final = "gpushare.aliyun.com/evicting"

# Label of a pod that only autoscalers are to see, extender: the uid of the pod that needs a node.
# An annotation with the same name has that pod's namespace and name, for people.
LABEL_PLACEHOLDER: Final = "gpushare.aliyun.com/placeholder-for"

# Pod annotations, user: the placement policy (cards/placement_policy.py).
ANNOTATION_NODE_POLICY: Final = "gpushare.aliyun.com/node-policy"
ANNOTATION_CARD_POLICY: Final = "gpushare.aliyun.com/card-policy"
ANNOTATION_CARD_MODELS: Final = "gpushare.aliyun.com/card-models"
ANNOTATION_CARDS_ONLY: Final = "gpushare.aliyun.com/card-uuids-only"
ANNOTATION_CARDS_NOT: Final = "gpushare.aliyun.com/card-uuids-not"

# Pod annotation, user: "required" allows only cards whose driver keeps each container to its share
# of the memory; "preferred" is the default.
ANNOTATION_ISOLATION: Final = "gpushare.aliyun.com/isolation"

# Node annotations, operator: UUIDs of cards that take no new pods, and the reasons for people.
ANNOTATION_CORDONED_CARDS: Final = "gpushare.aliyun.com/cordoned-cards"
ANNOTATION_CORDON_REASONS: Final = "gpushare.aliyun.com/cordon-reasons"
CORDONED_BY_DEFRAGMENT: Final = "gpushare defragment"  # a reason: no person has cordoned the card

# Node label, operator: the DaemonSet runs here and cards are shared by memory.
LABEL_NODE: Final = "gpushare"

# Node taint, set when a node is created; removed by the device plugin once it serves.
TAINT_NOT_READY: Final = "gpushare.aliyun.com/not-ready"

# Pod annotations, extender: the decision. All are written with every Binding.
ANNOTATION_INDEX: Final = "ALIYUN_COM_GPU_MEM_IDX"
ANNOTATION_POD_UNITS: Final = "ALIYUN_COM_GPU_MEM_POD"
ANNOTATION_CARD_UNITS: Final = "ALIYUN_COM_GPU_MEM_DEV"
ANNOTATION_ASSUME_TIME: Final = "ALIYUN_COM_GPU_MEM_ASSUME_TIME"
ANNOTATION_ASSIGNED: Final = "ALIYUN_COM_GPU_MEM_ASSIGNED"
ANNOTATION_ALLOCATION: Final = "scheduler.framework.gpushare.allocation"
ANNOTATION_INIT_ALLOCATION: Final = "gpushare.aliyun.com/init-allocation"
ANNOTATION_CARDS: Final = "gpushare.aliyun.com/cards"

# Pod annotation, extender, written with the Binding of a member of a gang: whether the minimum is
# bound with it, or was before. A new leader knows by it which gangs have been whole.
ANNOTATION_GANG: Final = "gpushare.aliyun.com/gang"
GANG_STARTING: Final = "starting"
GANG_COMPLETING: Final = "completing"  # whole if the Bindings under way succeed
GANG_WHOLE: Final = "whole"

# Pod annotations, device plugin: when and where the pod really runs.
ANNOTATION_ASSIGN_TIME: Final = "ALIYUN_COM_GPU_MEM_ASSIGN_TIME"
ANNOTATION_RUNNING_ON: Final = "gpushare.aliyun.com/running-on"

# Pod annotation in the kubelet's list of pods, kubelet: when it first saw the pod.
ANNOTATION_SEEN: Final = "kubernetes.io/config.seen"

# Pod annotation, kubelet: the pod stands for a static pod, which the API server cannot end.
ANNOTATION_MIRROR: Final = "kubernetes.io/config.mirror"

# Pod condition, device plugin: False while a container cannot start because the decision cannot be
# carried out. The extender evicts the pod if a new decision would help.
CONDITION_CARD_USABLE: Final = "gpushare.aliyun.com/CardUsable"

# Node annotation, device plugin: the node's cards.
ANNOTATION_INVENTORY: Final = "gpushare.aliyun.com/inventory"
INVENTORY_VERSION: Final = 1
MODEL_SIMULATED: Final = "Simulated GPU"  # ``model`` of a card that exists only as a number
# Values of ``binding`` in it: cards are assigned at admission, or at each container's start.
EARLY_BINDING: Final = "early"
LATE_BINDING: Final = "late"

# Values of ``injection`` in it: what gives containers access to cards. Older plugins state none.
# With CDI, the edits of NVIDIA's own specification do so under any low-level runtime. Otherwise
# NVIDIA's runtime does; it reads bare UUIDs, or names of CDI devices that it generates itself.
BY_CDI: Final = "cdi"
BY_RUNTIME: Final = "runtime"
BY_RUNTIME_CDI: Final = "runtime-cdi"

# Values of a card's ``enforces`` in it: what keeps containers to their share of its memory. Older
# plugins state none.
BY_DRIVER: Final = "driver"
BY_FRAMEWORK: Final = "framework"  # variables by which PyTorch and JAX limit themselves
BY_NOTHING: Final = "nothing"

# RuntimeClasses that NVIDIA's GPU Operator creates for NVIDIA's runtime.
CLASS_NVIDIA: Final = "nvidia"
CLASS_NVIDIA_CDI: Final = "nvidia-cdi"
CLASS_NVIDIA_LEGACY: Final = "nvidia-legacy"

# Lease annotation, leader: host:port at which other replicas reach it.
ANNOTATION_ADDRESS: Final = "gpushare.aliyun.com/address"

# Container environment, device plugin.
ENV_VISIBLE_DEVICES: Final = "NVIDIA_VISIBLE_DEVICES"
# MiB of each GPU of a container that NVIDIA's hook reserves and limits (toolkit 1.20.1 and newer,
# driver R615 and newer).
ENV_MEMORY_REQUEST: Final = "NVIDIA_GPU_MEMORY_REQUEST"
ENV_MEMORY_LIMIT: Final = "NVIDIA_GPU_MEMORY_LIMIT"
ENV_MEMORY_LIMITS: Final = (ENV_MEMORY_REQUEST, ENV_MEMORY_LIMIT)
# What keeps the container to its share. MiB of each GPU that a process in it can allocate, and the
# same as a part of the memory that the process sees.
ENV_ENFORCED: Final = "ALIYUN_COM_GPU_MEM_ENFORCED"
ENV_ALLOCATABLE: Final = "ALIYUN_COM_GPU_MEM_ALLOCATABLE"
ENV_FRACTION: Final = "ALIYUN_COM_GPU_MEM_FRACTION"
# By which frameworks limit themselves.
ENV_TORCH: Final = "PYTORCH_ALLOC_CONF"
ENV_TORCH_CUDA: Final = "PYTORCH_CUDA_ALLOC_CONF"  # its name in older versions
ENV_JAX: Final = "XLA_PYTHON_CLIENT_MEM_FRACTION"
ENV_JAX_NEWER: Final = "XLA_CLIENT_MEM_FRACTION"  # JAX refuses to start with both
ENV_TENSORFLOW: Final = "TF_FORCE_GPU_ALLOW_GROWTH"
ENV_FRAMEWORKS: Final = (ENV_TORCH, ENV_TORCH_CUDA, ENV_JAX, ENV_JAX_NEWER, ENV_TENSORFLOW)
ENV_INDEX: Final = "ALIYUN_COM_GPU_MEM_IDX"
ENV_POD_UNITS: Final = "ALIYUN_COM_GPU_MEM_POD"
ENV_CONTAINER_UNITS: Final = "ALIYUN_COM_GPU_MEM_CONTAINER"
ENV_CARD_UNITS: Final = "ALIYUN_COM_GPU_MEM_DEV"
ENV_CARD_UUID: Final = "GPUSHARE_CARD_UUID"  # NVIDIA_VISIBLE_DEVICES may be "void" instead
NO_CARD: Final = "void"  # for NVIDIA's container toolkit, as if the variable were unset
# Values for which NVIDIA's runtime gives access to no card.
HIDES_CARDS: Final = frozenset({NO_CARD, "none"})

# The kind of the CDI devices that NVIDIA's runtime generates when a container names one.
CDI_KIND_RUNTIME: Final = "runtime.nvidia.com/gpu"

# Keys of pod annotations that add CDI devices, alone or with a slash and more. On CRI-O, NVIDIA's
# runtime reads those with a slash (nvidia-container-toolkit, internal/config/image/cuda_image.go);
# NVIDIA's NRI plugin also reads the key alone (containerd/nri, pkg/plugin/annotations.go).
CDI_ANNOTATIONS: Final = ("cdi.k8s.io", "nvidia.cdi.k8s.io")
CDI_OF_CARDS: Final = ("nvidia.com/", "gpushare.aliyun.com/")  # in the kinds of devices for cards

# CDI device of a share: ``gpushare.aliyun.com/share=<name>``.
CDI_KIND: Final = "gpushare.aliyun.com/share"
CDI_PROBE_KIND: Final = "gpushare.aliyun.com/probe"  # no container requests it

# Metrics, device plugin: MiB of a card by container, which `gpushare top` and the live page read.
METRIC_POD_USED: Final = "gpushare_deviceplugin_pod_used_mib"
METRIC_POD_ASKED: Final = "gpushare_deviceplugin_pod_asked_mib"
METRIC_POD_LIMIT: Final = "gpushare_deviceplugin_pod_limit_mib"  # kept by the driver
METRIC_POD_SM: Final = "gpushare_deviceplugin_pod_sm_percent"  # of its multiprocessors
METRIC_OTHERS_USED: Final = "gpushare_deviceplugin_others_used_mib"  # by processes of no live pod

# The profiles of kube-scheduler that call the extender, unless its configuration names others: that
# of the cluster, and that of second-scheduler mode.
SCHEDULER_NAMES: Final = ("default-scheduler", "gpushare-scheduler")
# Aliyun gpushare's URL prefix of the extender; our port next to kube-scheduler.
EXTENDER_PREFIX: Final = "/gpushare-scheduler"
EXTENDER_PORT: Final = 29766
# Aliyun gpushare's port, with which kube-scheduler may still be configured. It is a NodePort, so a
# Service may receive its calls.
FORMER_EXTENDER_PORT: Final = 32766
# The default of the API server's --service-node-port-range.
NODE_PORTS: Final = range(30000, 32768)
