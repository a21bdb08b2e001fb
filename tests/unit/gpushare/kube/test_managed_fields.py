"""A pod with deeply nested managed fields is read like any other."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.groups.model import GroupKey, PodGroup, Source
from gpushare.groups.pod_groups import PodGroupObject, value_of
from gpushare.kube.managed_fields import decoded, without_managed_fields
from gpushare.objects.pod_reader import read_pod

DEPTH = 9_990  # the API server takes 10,000


def nested(depth: int) -> str:
    return '{"f:y":' * depth + "{}" + "}" * depth


def pod(name: str, fields: str) -> bytes:
    """Return a pod as the API server writes it: managed fields last in metadata, no spaces."""
    managed = f'[{{"manager":"m","operation":"Update","fieldsV1":{fields}}}]'
    meta = f'{{"name":"{name}","namespace":"d","uid":"u","managedFields":{managed}}}'
    return f'{{"metadata":{meta},"spec":{{"nodeName":"n"}},"status":{{}}}}'.encode()


@pytest.mark.parametrize("depth", [0, 1, 1_100, DEPTH])
def test_a_pod_with_managed_fields_of_any_depth_is_read(depth):
    found = decoded(read_pod, pod("deep", nested(depth)))
    assert (found.metadata.name, found.spec.node_name) == ("deep", "n")


@pytest.mark.parametrize("depth", [0, 1, 1_100, DEPTH])
def test_a_custom_resource_with_managed_fields_of_any_depth_is_read(depth):
    managed = f'[{{"fieldsV1":{nested(depth)},"manager":"m"}}]'
    meta = f'{{"annotations":{{}},"managedFields":{managed},"name":"deep","namespace":"d"}}'
    body = f'{{"kind":"PodGroup","metadata":{meta},"spec":{{"minMember":3}}}}'.encode()
    found = decoded(msgspec.json.Decoder(PodGroupObject).decode, body)
    assert value_of(found, Source.POD_GROUP) == PodGroup(GroupKey("d", Source.POD_GROUP, "deep"), 3)


def test_every_pod_of_a_list_is_read():
    pods = [pod("a", nested(1)), pod("b", nested(DEPTH)), pod("c", nested(DEPTH))]
    found = without_managed_fields(b'{"items":[' + b",".join(pods) + b"]}")
    names = [each["metadata"]["name"] for each in msgspec.json.decode(found)["items"]]
    assert names == ["a", "b", "c"]


texts = st.text(st.sampled_from('"managedFields:[]{},spec\\ ü'), max_size=30)


@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=4))
def test_only_managed_fields_are_removed(written):
    pods = [
        {
            "metadata": {
                "annotations": {key: value},
                "managedFields": [{"manager": value, "fieldsV1": {f"f:{key}": {"spec": {}}}}],
            },
            "spec": {"nodeName": value},
        }
        for key, value in written
    ]
    found = msgspec.json.decode(without_managed_fields(msgspec.json.encode({"items": pods})))
    for each in pods:
        each["metadata"]["managedFields"] = []
    assert found == {"items": pods}
