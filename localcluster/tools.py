"""Command-line tools that no cluster contains, built into the cache on request."""

from pathlib import Path

from localcluster.build import kubernetes
from localcluster.errors import UsageError
from localcluster.gobuild import module_folder
from localcluster.programs import Programs, Progress, provide_programs
from localcluster.versions import DEFAULT

_SOURCES = Path(__file__).parent / "tools"
_KUBERNETES_DISCOVERY = ("remove_all_sd", "enable_kubernetes_sd")


def tools() -> dict[str, Programs]:
    """Return every tool, by name."""
    told = kubernetes(DEFAULT).components[0].link_flags
    helm = ("helm.sh/helm/v4/cmd/helm",)
    kubeadm = ("k8s.io/kubernetes/cmd/kubeadm",)
    promtool = ("github.com/prometheus/prometheus/cmd/promtool",)
    found = (
        Programs("helm", _SOURCES / "helm", helm),
        Programs("kubeadm", DEFAULT.module, kubeadm, told),
        # Karpenter whose nodes are objects of the API server and nothing else.
        Programs("kwok", _SOURCES / "karpenter", ("sigs.k8s.io/karpenter/kwok",)),
        # Without the service discoveries of clouds there is less than half to compile.
        Programs("promtool", _SOURCES / "promtool", promtool, tags=_KUBERNETES_DISCOVERY),
    )
    return {each.name: each for each in found}


def tool(name: str, progress: Progress) -> Path:
    """Return the program called `name`; build it if it is not in the cache.

    Raises UsageError for an unknown name, BuildError for any compiler error.
    """
    return provide_programs(_known(name), progress) / name


def tool_module(name: str, module: str) -> Path:
    """Return the folder of a module's sources from which the program called `name` is built.

    Raises UsageError for an unknown name, BuildError if it cannot be downloaded.
    """
    return module_folder(_known(name).module, module)


def _known(name: str) -> Programs:
    known = tools()
    if name not in known:
        raise UsageError(f"no such tool: {name!r}; there are: {', '.join(known)}")
    return known[name]
