"""Reading which cgroup hierarchies are mounted."""

from pathlib import Path

from localcluster.cgroups import parse_hierarchies

HYBRID = """\
cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,relatime,cpu,cpuacct 0 0
cgroup /sys/fs/cgroup/systemd cgroup rw,relatime,xattr,name=systemd 0 0
cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0
tmpfs /run tmpfs rw 0 0
"""


def test_a_hybrid_layout_has_both_kinds() -> None:
    found = parse_hierarchies(HYBRID)
    assert [each.controllers for each in found] == [("cpu", "cpuacct"), ("name=systemd",), ()]
    assert [each.unified for each in found] == [False, False, True]


def test_a_unified_layout_is_one_hierarchy() -> None:
    found = parse_hierarchies("cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n")
    assert [(each.mount, each.unified) for each in found] == [(Path("/sys/fs/cgroup"), True)]
