"""What is read from a device plugin's metrics."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from extender.page.rules import MOST_CHARACTERS, NOT_ENABLED, UNREADABLE, NodeUsage, read_usage
from gpushare.process.time_slices import run_all

_LINE = 'gpushare_deviceplugin_pod_{}_mib{{card="0",namespace="{}",pod="{}",uuid="{}"}} {}'
_ASKED = _LINE.format("asked", "n", "a", "GPU-0", 1)


def test_use_is_by_gpu_and_pod():
    page = "\n".join(
        [
            "# HELP gpushare_deviceplugin_pod_used_mib Measured.",
            _LINE.format("asked", "research", "a", "GPU-0", 4096),
            _LINE.format("used", "research", "a", "GPU-0", "1.5e+03"),
            _LINE.format("used", "serving", "b", "GPU-1", 7),
            "python_gc_objects_collected_total 3",
        ]
    )
    assert run_all(read_usage(page)) == NodeUsage(
        {"GPU-0": {"research/a": 1500}, "GPU-1": {"serving/b": 7}}
    )


@given(st.integers(0, 2**40))
def test_what_the_plugins_library_writes_is_read(mib):
    registry = CollectorRegistry()
    labels = {"namespace": "n", "pod": "a", "card": "0", "uuid": "GPU-0"}
    for kind in ("asked", "used"):
        name = f"gpushare_deviceplugin_pod_{kind}_mib"
        Gauge(name, "MiB.", list(labels), registry=registry).labels(**labels).set(mib)
    found = run_all(read_usage(generate_latest(registry).decode()))
    assert found == NodeUsage({"GPU-0": {"n/a": mib}})


def test_a_gpu_without_pods_is_measured():
    line = 'gpushare_deviceplugin_others_used_mib{by="host",card="0",uuid="GPU-0"} 3'
    assert run_all(read_usage(line)) == NodeUsage({})


def test_a_plugin_that_does_not_measure_says_how_to_enable_it():
    found = run_all(read_usage("gpushare_deviceplugin_calls_total 1"))
    assert found == NodeUsage(why=NOT_ENABLED)
    assert "process-memory" in NOT_ENABLED


@pytest.mark.parametrize("amount", ["NaN", "+Inf", "many", "", "-1", "1e+99", "9" * 400])
def test_amounts_that_are_not_numbers_are_never_zero(amount):
    page = f"{_ASKED}\n{_LINE.format('used', 'n', 'a', 'GPU-0', amount)}"
    assert run_all(read_usage(page)) == NodeUsage(why=UNREADABLE)


def test_other_labels_cannot_be_read():
    page = f"{_ASKED}\ngpushare_deviceplugin_pod_used_mib{{,\t=1#=}} 1"
    assert run_all(read_usage(page)) == NodeUsage(why=UNREADABLE)


def test_more_amounts_than_a_node_has_pods_for_are_not_read():
    line = _LINE.format("used", "n", "a", "GPU-0", 1)
    page = "\n".join([_ASKED, *[line] * (MOST_CHARACTERS // len(line) + 1)])
    assert run_all(read_usage(page)) == NodeUsage(why=UNREADABLE)


@given(st.text(), st.text())
def test_any_text_is_answered(labels, amount):
    page = f"{_ASKED}\ngpushare_deviceplugin_pod_used_mib{{{labels}}} {amount}"
    assert isinstance(run_all(read_usage(page)), NodeUsage)
