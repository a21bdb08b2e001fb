"""What is read from a device plugin's metrics."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from extender.page.rules import (
    MOST_CHARACTERS,
    NOT_ENABLED,
    UNREADABLE,
    CardUsage,
    NodeUsage,
    read_usage,
)
from gpushare.process.time_slices import run_all

_OLD = 'gpushare_deviceplugin_pod_{}_mib{{card="0",namespace="{}",pod="{}",uuid="{}"}} {}'


def line(kind, pod, amount, *, namespace="n", uuid="GPU-0", container="main"):
    name = f"gpushare_deviceplugin_pod_{kind}{'' if kind == 'sm_percent' else '_mib'}"
    labels = f'card="0",container="{container}",namespace="{namespace}",pod="{pod}",uuid="{uuid}"'
    return f"{name}{{{labels}}} {amount}"


def others(uuid, **amounts):
    """Return the lines about processes outside of living pods; ``ended`` stands for ended-pod."""
    return [
        f'gpushare_deviceplugin_others_used_mib{{by="{kind}",card="0",uuid="{uuid}"}} {mib}'
        for kind, mib in ({"ended-pod": amounts.pop("ended", 0)} | amounts).items()
    ]


def measured(*lines):
    return run_all(read_usage("\n".join(lines))).cards


def test_use_is_by_gpu_and_pod():
    found = measured(
        "# HELP gpushare_deviceplugin_pod_used_mib Measured.",
        line("asked", "a", 4096, namespace="research"),
        line("used", "a", "1.5e+03", namespace="research"),
        *others("GPU-0", host=0, unknown=0),
        line("asked", "b", 4096, namespace="serving", uuid="GPU-1"),
        line("used", "b", 7, namespace="serving", uuid="GPU-1"),
        line("limit", "b", 4096, namespace="serving", uuid="GPU-1"),
        *others("GPU-1", host=12, ended=300, unknown=0),
        "python_gc_objects_collected_total 3",
    )
    assert found == {
        "GPU-0": CardUsage({"research/a": 1500}),
        "GPU-1": CardUsage({"serving/b": 7}, others=312),
    }


def test_the_containers_of_a_pod_are_added_up():
    found = measured(
        *(line("asked", "a", 4096, container=name) for name in ("main", "helper", "")),
        *(line("used", "a", 20, container=name) for name in ("main", "helper", "")),
        line("sm_percent", "a", 30),
        line("sm_percent", "a", 12, container="helper"),
        line("sm_percent", "b", 5),
        *others("GPU-0", host=0, unknown=0),
    )
    assert found == {"GPU-0": CardUsage({"n/a": 60}, {"n/a": 42, "n/b": 5})}


def test_a_pod_with_a_container_whose_use_is_not_known_has_no_sum():
    asked = [line("asked", "a", 1, container=name) for name in ("main", "helper")]
    whole = others("GPU-0", host=0, unknown=0)
    assert measured(*asked, line("used", "a", 5), *whole) == {"GPU-0": CardUsage(is_partial=True)}


def test_a_plugin_that_names_no_containers_is_read():
    lines = [_OLD.format(kind, "n", "a", "GPU-0", 5) for kind in ("asked", "used")]
    whole = others("GPU-0", host=0, unknown=0)
    assert measured(*lines, *whole) == {"GPU-0": CardUsage({"n/a": 5})}


def test_a_gpu_of_which_the_plugin_does_not_know_all_is_partial():
    asked = [line("asked", name, 1) for name in "ab"]
    one = line("used", "a", 5)
    whole = others("GPU-0", host=0, unknown=0)
    partial = {"GPU-0": CardUsage({"n/a": 5}, is_partial=True)}
    assert measured(*asked, one, *whole) == partial
    assert measured(*asked[:1], one, *whole[:2]) == partial
    assert measured(*asked) == {"GPU-0": CardUsage(is_partial=True)}


@given(st.integers(0, 2**40))
def test_what_the_plugins_library_writes_is_read(mib):
    registry = CollectorRegistry()
    labels = {"namespace": "n", "pod": "a", "container": "", "card": "0", "uuid": "GPU-0"}
    for kind in ("asked_mib", "used_mib", "limit_mib", "sm_percent"):
        name = f"gpushare_deviceplugin_pod_{kind}"
        Gauge(name, "MiB.", list(labels), registry=registry).labels(**labels).set(mib)
    name, labels = "gpushare_deviceplugin_others_used_mib", ["card", "uuid", "by"]
    outside = Gauge(name, "MiB.", labels, registry=registry)
    for by in ("host", "ended-pod", "unknown"):
        outside.labels("", "GPU-0", by).set(mib)
    found = run_all(read_usage(generate_latest(registry).decode()))
    assert found == NodeUsage({"GPU-0": CardUsage({"n/a": mib}, {"n/a": mib}, 3 * mib)})


def test_a_gpu_without_pods_is_measured():
    assert measured(*others("GPU-0", host=0, unknown=0)) == {"GPU-0": CardUsage()}


def test_a_plugin_that_does_not_measure_says_how_to_enable_it():
    found = run_all(read_usage("gpushare_deviceplugin_calls_total 1"))
    assert found == NodeUsage(why=NOT_ENABLED)
    assert "process-memory" in NOT_ENABLED


@pytest.mark.parametrize("amount", ["NaN", "+Inf", "many", "", "-1", "1e+99", "9" * 400])
def test_amounts_that_are_not_numbers_are_never_zero(amount):
    page = f"{line('asked', 'a', 1)}\n{line('used', 'a', amount)}"
    assert run_all(read_usage(page)) == NodeUsage(why=UNREADABLE)


@pytest.mark.parametrize("labels", [",\t=1#=", 'card="0",uuid="GPU-0"'])
def test_other_labels_cannot_be_read(labels):
    page = f"{line('asked', 'a', 1)}\ngpushare_deviceplugin_pod_used_mib{{{labels}}} 1"
    assert run_all(read_usage(page)) == NodeUsage(why=UNREADABLE)


def test_more_amounts_than_a_node_has_pods_for_are_not_read():
    one = line("used", "a", 1)
    page = "\n".join([one] * (MOST_CHARACTERS // len(one) + 1))
    assert run_all(read_usage(page)) == NodeUsage(why=UNREADABLE)


@given(st.text(), st.text())
def test_any_text_is_answered(labels, amount):
    page = f"{line('asked', 'a', 1)}\ngpushare_deviceplugin_pod_used_mib{{{labels}}} {amount}"
    assert isinstance(run_all(read_usage(page)), NodeUsage)
