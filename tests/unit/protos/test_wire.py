"""Our .proto files decode what a real kubelet and plugin sent, and their code is current."""

from pathlib import Path

import msgspec
import pytest

from protos.deviceplugin.v1beta1 import api_pb2
from protos.generate import drifted

RECORDED = msgspec.json.decode(Path(__file__).with_name("recorded.json").read_bytes())["exchange"]
OPTIONS = {"pre_start_required": True, "get_preferred_allocation_available": True}
HEALTHY = [f"a000{n}" for n in range(4)]

# What was said, by call: request and response.
SAID = {
    "Register": (
        api_pb2.RegisterRequest(
            version="v1beta1",
            endpoint="rec.sock",
            resource_name="aliyun.com/gpu-mem",
            options=OPTIONS,
        ),
        api_pb2.Empty(),
    ),
    "GetDevicePluginOptions": (api_pb2.Empty(), api_pb2.DevicePluginOptions(**OPTIONS)),
    "ListAndWatch": (
        api_pb2.Empty(),
        api_pb2.ListAndWatchResponse(
            devices=[
                *({"ID": each, "health": "Healthy"} for each in HEALTHY),
                {"ID": "b0000", "health": "Unhealthy", "topology": {"nodes": [{"ID": 1}]}},
            ]
        ),
    ),
    "GetPreferredAllocation": (
        api_pb2.PreferredAllocationRequest(
            container_requests=[{"available_deviceIDs": HEALTHY, "allocation_size": 2}]
        ),
        api_pb2.PreferredAllocationResponse(container_responses=[{"deviceIDs": HEALTHY[:2]}]),
    ),
    "Allocate": (
        api_pb2.AllocateRequest(container_requests=[{"devices_ids": ["a0001", "a0000"]}]),
        api_pb2.AllocateResponse(
            container_responses=[
                {
                    "envs": {"NVIDIA_VISIBLE_DEVICES": "void"},
                    "annotations": {"example.com/recorded": "yes"},
                    "mounts": [
                        {"container_path": "/recorded", "host_path": "/tmp", "read_only": True}
                    ],
                    "devices": [
                        {
                            "container_path": "/dev/recorded",
                            "host_path": "/dev/null",
                            "permissions": "rw",
                        }
                    ],
                }
            ]
        ),
    ),
    "PreStartContainer": (
        api_pb2.PreStartContainerRequest(devices_ids=["a0001", "a0000"]),
        api_pb2.PreStartContainerResponse(),
    ),
}


@pytest.mark.parametrize("exchange", RECORDED, ids=lambda exchange: exchange["call"])
def test_recorded_bytes_mean_what_was_said(exchange: dict) -> None:
    said = dict(zip(("request", "response"), SAID[exchange["call"]], strict=True))
    for side, message in said.items():
        recorded = bytes.fromhex(exchange[side])
        assert type(message).FromString(recorded) == message
        assert message.SerializeToString(deterministic=True) == recorded


def test_every_call_of_the_interface_was_recorded() -> None:
    assert {exchange["call"] for exchange in RECORDED} == set(SAID)
    services = api_pb2.DESCRIPTOR.services_by_name.values()
    assert {method.name for service in services for method in service.methods} == set(SAID)


def test_the_generated_code_is_current() -> None:
    pytest.importorskip("grpc_tools", reason="grpcio-tools, of the dev dependencies, is missing")
    assert drifted() == []


def test_a_cdi_device_is_field_five() -> None:
    # Not in the recording: derived from the encoding rules, field 5 and length-delimited.
    answer = api_pb2.ContainerAllocateResponse(cdi_devices=[{"name": "v/c=d"}])
    assert answer.SerializeToString() == b"\x2a\x07\x0a\x05v/c=d"


def test_devices_that_must_be_included_are_field_two() -> None:
    wish = api_pb2.ContainerPreferredAllocationRequest(must_include_deviceIDs=["a0000"])
    assert wish.SerializeToString() == b"\x12\x05a0000"
