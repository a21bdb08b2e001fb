"""All gangs of a cluster, from its pods and PodGroups, kept up to date one event at a time."""

from collections.abc import Iterable, Iterator
from typing import Final

from gpushare.groups.group import Group
from gpushare.groups.model import GroupKey, PodGroup, Source
from gpushare.groups.reasons import NOT_LISTED
from gpushare.groups.sources import key_of
from gpushare.ledger.changes import Changes
from gpushare.objects.model import Pod
from gpushare.placement.reasons import Reason

_WITH_OBJECTS: Final = (Source.NATIVE, Source.POD_GROUP)


class Groups:
    """The index of gangs. Every update takes constant time, whatever the size of the gang.

    ``changes`` has ``str(key)`` of each gang that changed in a way that may change an answer about
    it: its members, what they ask for and where they are, or what its PodGroup says.
    """

    def __init__(self) -> None:
        self.changes = Changes()
        self._groups: dict[GroupKey, Group] = {}
        self._key_of: dict[str, GroupKey] = {}
        self._pod_groups: dict[GroupKey, PodGroup] = {}
        self._unreadable: dict[Source, Reason] = dict.fromkeys(_WITH_OBJECTS, NOT_LISTED)

    def __iter__(self) -> Iterator[Group]:
        return iter(self._groups.values())

    def __len__(self) -> int:
        return len(self._groups)

    def get(self, key: GroupKey) -> Group | None:
        """Return a gang that has live pods; None without any."""
        return self._groups.get(key)

    def named(self, name: str) -> Group | None:
        """Return the gang whose ``str(key)`` is ``name``, as ``changes`` has it; else None."""
        try:
            key = GroupKey.parsed(name)
        except ValueError:
            return None
        return self._groups.get(key)

    def of(self, uid: str) -> Group | None:
        """Return the gang of a pod; None if it belongs to none or is not known."""
        key = self._key_of.get(uid)
        return None if key is None else self._groups[key]

    def uids(self) -> Iterable[str]:
        """Return the uids of all pods of gangs."""
        return self._key_of.keys()

    def update(self, pod: Pod) -> None:
        """Take a pod or its new version: it may join, change or leave a gang.

        Pods that have ended belong to none.
        """
        key, before = None if pod.is_terminal else key_of(pod), self._key_of.get(pod.uid)
        if before is not None and before != key:
            self.forget(pod.uid)
        if key is None:
            return
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Group(key, self._pod_groups.get(key), self._unreadable)
        self._key_of[pod.uid] = group.key  # one object for all members
        if group.put(pod):
            self._changed(group)

    def forget(self, uid: str) -> None:
        """Take that a pod has ended or is deleted; do nothing if it belongs to no gang."""
        key = self._key_of.pop(uid, None)
        if key is None:
            return
        group = self._groups[key]
        group.drop(uid)
        if not group.members:
            del self._groups[key]
        self._changed(group)

    def put_pod_group(self, pod_group: PodGroup) -> None:
        """Take a PodGroup or its new version."""
        self._pod_groups[pod_group.key] = pod_group
        self._say(pod_group.key, pod_group)

    def drop_pod_group(self, key: GroupKey) -> None:
        """Take that a PodGroup is deleted."""
        if self._pod_groups.pop(key, None) is not None:
            self._say(key, None)

    def replaced_pod_groups(
        self, source: Source, items: Iterable[PodGroup], why: Reason | None = None
    ) -> Iterator[None]:
        """Take all PodGroups of a source, in steps; those that are missing are deleted.

        ``why`` says why there can be none.
        """
        listed = {each.key: each for each in items}
        for key in [key for key in self._pod_groups if key.source is source]:
            if key not in listed:
                self.drop_pod_group(key)
                yield
        for each in listed.values():
            self.put_pod_group(each)
            yield
        self.set_unreadable(source, why)

    def set_unreadable(self, source: Source, why: Reason | None) -> None:
        """Take why PodGroups of a source cannot be read, or None if they can.

        It is the problem of gangs whose PodGroup is not known; what was read before remains known.
        """
        if self._unreadable.get(source) == why:
            return
        if why is None:
            del self._unreadable[source]
        else:
            self._unreadable[source] = why
        for group in self:
            if group.key.source is source and group.pod_group is None:
                self._changed(group)

    def _say(self, key: GroupKey, pod_group: PodGroup | None) -> None:
        group = self._groups.get(key)
        if group is not None and group.pod_group != pod_group:
            group.pod_group = pod_group
            self._changed(group)

    def _changed(self, group: Group) -> None:
        self.changes.add(str(group.key))
        group.version = self.changes.now
