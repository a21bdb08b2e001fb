"""Finds the cgroups of containers among those of the machine (cgroup v2)."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from deviceplugin.usage.cgroup_paths import names_of, pod_of

# kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/<pod> in kind, and two more
# for a kubelet with a cgroup root of its own.
_MOST_LEVELS: Final = 6
_OF_CRUN: Final = "container"  # crun moves a container's processes there


class Cgroups:
    """The cgroups below ``root``, which is where cgroup v2 is mounted.

    Users may create cgroups in those of their containers, so none of these is listed: a pod's
    cgroup is found by its name, and a container's by its ID below it. The pods' cgroups are kept
    until a pod is looked for that is not among them.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._pods: Mapping[str, Path] = {}

    def find(self, wanted: Mapping[str, str]) -> dict[str, list[Path]]:
        """Return the directories of containers by their ID; those that are not found are missing.

        ``wanted`` has the uid of the pod of each container, by the container's ID. A container's
        own directory comes first, then the one below it that crun may have made; with another
        runtime it is a user's.
        """
        if not all(uid in self._pods and self._pods[uid].is_dir() for uid in wanted.values()):
            self._pods = self._look()
        found = {}
        for container_id, uid in wanted.items():
            if (pod := self._pods.get(uid)) and (groups := _container(pod, container_id)):
                found[container_id] = groups
        return found

    def sees_pods(self) -> bool:
        """Return whether any pod's cgroup is visible.

        A program in a cgroup namespace of its own sees none.
        """
        self._pods = self._pods or self._look()
        return bool(self._pods)

    def _look(self) -> dict[str, Path]:
        pods: dict[str, Path] = {}
        level = [self.root]
        for _ in range(_MOST_LEVELS):
            below = []
            for directory in (each for above in level for each in _directories(above)):
                if uid := pod_of(directory.name):
                    pods.setdefault(uid, directory)
                elif directory.suffix not in {".service", ".scope"}:  # what systemd runs
                    below.append(directory)
            level = below
        return pods


def _directories(above: Path) -> Iterator[Path]:
    try:
        with os.scandir(above) as entries:
            found = [Path(each.path) for each in entries if each.is_dir(follow_symlinks=False)]
    except OSError:
        return  # it has been removed, or is not visible
    yield from found


def _container(pod: Path, container_id: str) -> list[Path]:
    own = next((pod / name for name in names_of(container_id) if (pod / name).is_dir()), None)
    return [] if own is None else [own, *filter(Path.is_dir, [own / _OF_CRUN])]
