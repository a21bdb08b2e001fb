"""Command-line tools that no cluster contains, built into the cache on request."""

from pathlib import Path

from localcluster.build import kubernetes
from localcluster.errors import UsageError
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
        # Without the service discoveries of clouds there is less than half to compile.
        Programs("promtool", _SOURCES / "promtool", promtool, tags=_KUBERNETES_DISCOVERY),
    )
    return {each.name: each for each in found}


def tool(name: str, progress: Progress) -> Path:
    """Return the program called `name`; build it if it is not in the cache.

    Raises UsageError for an unknown name, BuildError for any compiler error.
    """
    known = tools()
    if name not in known:
        raise UsageError(f"no such tool: {name!r}; there are: {', '.join(known)}")
    return provide_programs(known[name], progress) / name
