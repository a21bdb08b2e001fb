"""The configuration file: read completely, or rejected with every wrong line."""

import subprocess
import sys
from contextlib import suppress
from itertools import pairwise

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from extender.__main__ import parse as parse_flags
from extender.binding.timing import WRITE_SECONDS
from extender.settings.configuration import Configuration, LeaderElection, Policy, ShapePoint
from extender.settings.file import load, parse
from extender.settings.listeners import Address, Listen, Tls
from extender.settings.section import Unusable
from gpushare.errors import SettingsError
from gpushare.kube.lease import Election, Record, Timing

ELECTION = (
    "leaderElection: {address: {host: h, port: 5}, "
    "tls: {certificate: c, key: k, authority: a, allowedNames: [n]}, "
)
ADDED = "scheduler.addedAffinity.requiredDuringSchedulingIgnoredDuringExecution"
AFFINITY = (
    "scheduler: {addedAffinity: {requiredDuringSchedulingIgnoredDuringExecution: "
    "{nodeSelectorTerms: "
)


def problems(text: str) -> list[str]:
    """Return the problems of a file with this text."""
    with pytest.raises(SettingsError) as rejected:
        parse(text.encode())
    return [line.strip() for line in str(rejected.value).strip().splitlines()]


def test_an_empty_file_has_the_defaults_of_existing_installations():
    found = parse(b"")
    assert found == parse(b"{}") == Configuration()
    assert (found.listen.deciding.host, found.listen.deciding.port) == ("127.0.0.1", 29766)
    assert (found.unit_mib, found.listen.reading, found.leader_election) == (1024, None, None)
    assert found.scheduler_names == ("default-scheduler", "gpushare-scheduler")


WHOLE = """
memoryUnit: 256MiB
logLevel: debug
policy:
  node: shape
  shape:
    - {utilization: 0, score: 0}
    - {utilization: 100, score: 10}
listen:
  deciding: {host: "::1", port: 1}
  decidingTls:
    host: 0.0.0.0
    port: 2
    tls: {certificate: /c, key: /k, authority: /a, allowedNames: [one, two]}
  reading: {access: open, port: 3}
leaderElection:
  leaseSeconds: 15
  renewSeconds: 10.5
  address: {host: 10.0.0.1, port: 4}
  tls: {certificate: /c, key: /k, authority: /a, allowedNames: [one]}
limits: {bind: 5}
"""


def test_every_section_is_read():
    found = parse(WHOLE.encode())
    assert found.unit_mib == 256
    assert found.policy == Policy(node="shape", shape=(ShapePoint(0, 0), ShapePoint(100, 10)))
    assert found.listen.deciding_tls is not None
    assert found.listen.deciding_tls.tls.allowed_names == ("one", "two")
    assert found.listen.reading is not None
    assert found.listen.reading.access == "open"
    election = found.leader_election
    assert election is not None
    assert (election.lease_seconds, election.renew_seconds, election.retry_seconds) == (15, 10.5, 1)
    assert election.address == Address("10.0.0.1", 4)
    assert (found.limits.bind, found.limits.filter) == (5, 32)


def test_gates_are_on_unless_they_are_turned_off():
    assert parse(b"").gates
    assert not parse(b"gates: off").gates
    assert problems("gates: 1") == ["gates (line 1): 1: write true or false"]


def test_all_problems_are_reported_at_once_with_line_and_place():
    text = "listn: {}\nlogLevel: loud\npolicy:\n  candidates: '8'\nlimits: [1]\n"
    assert problems(text) == [
        "listn (line 1): unknown key: did you mean listen",
        "logLevel (line 2): 'loud': write one of debug, error, info, warning",
        "policy.candidates (line 4): '8': write a whole number",
        "limits (line 5): write keys with values here, not a list",
    ]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("listen: {deciding: {host: 127.0.0.1, port: 0}}", "listen.deciding.port"),
        ("listen: {deciding: {host: 127.0.0.1, port: 65536}}", "listen.deciding.port"),
        ("listen: {deciding: {host: 127.0.0.1, port: true}}", "listen.deciding.port"),
        ("listen: {deciding: {host: 127.0.0.1}}", "listen.deciding.port"),
        ("listen: {deciding: {host: '', port: 1}}", "listen.deciding.host"),
        ("listen: {reading: {access: open, port: 29766}}", "listen.reading.port"),
        ("listen: {reading: {access: none}}", "listen.reading.access"),
        ("memoryUnit: GB", "memoryUnit"),
        ("memoryUnit: 1", "memoryUnit"),
        ("evictAfterSeconds: -1", "evictAfterSeconds"),
        ("evictAfterSeconds: soon", "evictAfterSeconds"),
        ("gates: 1", "gates"),
        ("schedulerNames: []", "schedulerNames"),
        ("gates: 'off'", "gates"),
        ("evictAfterSeconds: 1.5", "evictAfterSeconds"),
        ("evictAfterSeconds: 123456", "evictAfterSeconds"),
        ("limits: {filter: 0}", "limits.filter"),
        ("limits: {bodyMib: 1000000}", "limits.bodyMib"),
        ("policy: {candidates: -1}", "policy.candidates"),
        ("policy: {node: shape}", "policy.shape"),
        ("policy: {shape: [{utilization: 0, score: 0}]}", "policy.shape"),
        ("policy: {node: shape, shape: [{utilization: 0}]}", "policy.shape[0].score"),
        (
            "policy: {node: shape, shape: [{utilization: 5, score: 1},{utilization: 5, score: 1}]}",
            "policy.shape[1].utilization",
        ),
        (
            "policy: {node: shape, shape: [{utilization: 101, score: 1}]}",
            "policy.shape[0].utilization",
        ),
        (ELECTION + "renewSeconds: 6}", "leaderElection.renewSeconds"),
        (ELECTION + "renewSeconds: 5.9}", "leaderElection.renewSeconds"),
        (ELECTION + "leaseSeconds: 3, renewSeconds: 2}", "leaderElection.leaseSeconds"),
        (ELECTION + "retrySeconds: 3}", "leaderElection.leaseSeconds"),
        (ELECTION + "retrySeconds: 0}", "leaderElection.retrySeconds"),
        (ELECTION + "leaseSeconds: .nan}", "leaderElection.leaseSeconds"),
        (ELECTION + "leaseSeconds: .inf}", "leaderElection.leaseSeconds"),
        ("leaderElection: {}", "leaderElection.address"),
        ("leaderElection: {address: {host: h, port: 5}}", "leaderElection.tls"),
        ("scheduler: {ignoredResources: [cpu]}", "scheduler.ignoredResources[0]"),
        ("scheduler: {ignoredResources: [aliyun.com/gpu-mem]}", "scheduler.ignoredResources[0]"),
        ("scheduler: {ignoredResourceGroups: [a.b/c]}", "scheduler.ignoredResourceGroups[0]"),
        ("scheduler: {ignoredResourceGroups: [aliyun.com]}", "scheduler.ignoredResourceGroups[0]"),
        (
            "scheduler: {addedAffinity: {nodeSelectorTerms: []}}",
            "scheduler.addedAffinity.nodeSelectorTerms",
        ),
        (AFFINITY + "[{}]}}}", f"{ADDED}.nodeSelectorTerms[0].matchExpressions"),
        (
            AFFINITY + "[{matchExpressions: [{key: a, operator: Like}]}]}}}",
            f"{ADDED}.nodeSelectorTerms[0].matchExpressions[0].operator",
        ),
        (
            AFFINITY + "[{matchFields: [{key: spec.role, operator: In, values: [a]}]}]}}}",
            f"{ADDED}.nodeSelectorTerms[0].matchFields[0]",
        ),
        ("logLevel:", "logLevel"),
        ("listen: {}\nlisten: {}", "listen"),
        ("policy: {node: spread, node: binpack}", "policy.node"),
        ("? [a]\n: 1", "the file"),
        ("1: 2", "1"),
        ("[]", "the file"),
        ("just text", "the file"),
        ("a: &x [*x]", "a[0]"),
    ],
)
def test_an_invalid_value_is_named_by_its_place(text, place):
    assert problems(text)[0].startswith(place)


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "::", "node-1", "128.0.0.1"])
def test_deciding_without_tls_is_only_on_loopback_and_the_error_names_the_alternative(host):
    (said,) = problems(f"listen: {{deciding: {{host: '{host}', port: 29766}}}}")
    assert said.startswith("listen.deciding.host (line 1)")
    assert "write 127.0.0.1" in said
    assert "listen.decidingTls" in said


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_every_form_of_loopback_is_accepted(host):
    found = parse(f"listen: {{deciding: {{host: '{host}', port: 1}}}}".encode())
    assert found.listen.deciding.host == host


def test_tokens_never_cross_a_network_without_tls():
    (said,) = problems("listen: {reading: {host: 10.0.0.1}}")
    assert said.startswith("listen.reading.tls")
    parse(b"listen: {reading: {host: 127.0.0.1}}")
    parse(b"listen: {reading: {tls: {certificate: /c, key: /k}}}")


@pytest.mark.parametrize(
    "text", ["a: [", "\x00", "- 1\n---\n- 2", "a: !!python/name:os.system", "\t"]
)
def test_invalid_yaml_is_rejected_in_one_line(text):
    (said,) = problems(text)
    assert said.startswith(("not YAML", "a (line 1)"))


@pytest.mark.parametrize("text", ["a: !!bool maybe", "a: !!timestamp never", 'a: !!int ""'])
def test_a_value_that_contradicts_its_tag_is_invalid_yaml(text):
    assert "not YAML" in problems(text)[0]


def test_a_number_of_base_60_is_rejected_before_it_is_computed():
    (said,) = problems("limits: 1" + ":59" * 60_000)
    assert "not YAML: a number of 180001 characters" in said


def test_aliases_for_billions_of_values_are_rejected_at_once():
    text = "a: &a [x]\n" + "".join(
        f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]\n" for old, new in pairwise("abcdefghijk")
    )
    assert "more than 10000 values" in problems(text)[0]


def test_no_section_with_a_problem_can_be_constructed():
    with pytest.raises(ValueError, match="not loopback"):
        Listen(deciding=Address("0.0.0.0", 1))


def test_an_unreadable_file_is_named(tmp_path):
    with pytest.raises(SettingsError, match=r"none\.yaml cannot be read: No such file"):
        load(tmp_path / "none.yaml")
    large = tmp_path / "large.yaml"
    large.write_bytes(b"#" * (2**20 + 1))
    with pytest.raises(SettingsError, match="not a configuration"):
        load(large)


@pytest.mark.parametrize("flags", [[], ["--config"], ["--config=x", "--port=5"], ["x"]])
def test_flags_other_than_config_are_rejected(flags):
    with pytest.raises(SettingsError):
        parse_flags(flags)


def test_an_invalid_file_ends_the_program_with_its_problems(tmp_path):
    path = tmp_path / "extender.yaml"
    path.write_text("memoryUnit: lots\n")
    done = subprocess.run(
        [sys.executable, "-m", "extender", f"--config={path}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == (
        f"gpushare-extender: {path} cannot be used:\n"
        "  memoryUnit (line 1): lots: write GiB, MiB or a number of them, such as 256MiB\n"
    )


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 70000),
    st.floats(),
    st.text(max_size=5),
    st.dates(),
    st.binary(max_size=3),
    st.sampled_from(["127.0.0.1", "GiB", "shape", "open", "info"]),
)


def tree(section: msgspec.inspect.Type) -> st.SearchStrategy:
    """Generate nearly valid files: the keys of a section with values of any type."""
    if isinstance(section, msgspec.inspect.UnionType):
        return st.one_of(*map(tree, section.types), SCALARS)
    if isinstance(section, msgspec.inspect.VarTupleType):
        return st.one_of(st.lists(tree(section.item_type), max_size=3), SCALARS)
    if isinstance(section, msgspec.inspect.StructType):
        known = {field.encode_name: tree(field.type) for field in section.fields}
        return st.fixed_dictionaries({}, optional={**known, "other": SCALARS})
    return SCALARS


@given(tree(msgspec.inspect.type_info(Configuration)))
def test_any_nearly_valid_file_is_read_or_rejected(value):
    with suppress(SettingsError):
        parse(yaml.safe_dump(value).encode())


@given(st.one_of(st.binary(max_size=200), st.text("{}[]:-&*!?'\"\n ab1.,|<>#%@", max_size=60)))
def test_any_text_is_read_or_rejected(content):
    with suppress(SettingsError):
        parse(content if isinstance(content, bytes) else content.encode())


@given(lease=st.floats(0.1, 300), renew=st.floats(0.01, 300), retry=st.floats(0.01, 100))
def test_every_accepted_lease_leaves_time_for_a_binding(lease, renew, retry):
    """Even if the last renewal was requested as late as possible."""
    try:
        made = LeaderElection(
            lease_seconds=lease,
            renew_seconds=renew,
            retry_seconds=retry,
            address=Address("h", 5),
            tls=Tls("/c", "/k", "/a", ("one",)),
        )
    except Unusable:
        return
    election = Election("me", Timing(made.lease_seconds, made.renew_seconds, made.retry_seconds))
    election.wrote(Record("me", "1", made.lease_seconds), 0.0, 0.0)
    assert election.ends_at >= 1.2 * made.retry_seconds + WRITE_SECONDS


def test_the_former_port_is_served_with_the_default_port_until_it_is_turned_off():
    def former(text: str) -> int | None:
        found = parse(text.encode()).listen.former
        return found and found.port

    assert former("memoryUnit: GiB") == 32766
    assert former("listen: {formerPort: 0}") is None
    assert former("listen: {deciding: {host: 127.0.0.1, port: 40000}}") is None
    (said,) = problems("listen: {reading: {access: open, port: 32766}}")
    assert "listen.formerPort" in said
