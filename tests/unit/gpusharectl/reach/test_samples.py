"""Prometheus' text form is read as the library that wrote it means it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from gpushare.errors import RecordError
from gpusharectl.reach.samples import Samples


@given(
    st.dictionaries(st.text(max_size=8), st.floats(allow_nan=False), max_size=5),
    st.floats(allow_nan=False),
)
def test_what_the_library_writes_is_read_back(by_label, plain):
    registry = CollectorRegistry()
    labelled = Gauge("gpu_used", 'help with "quotes"\nand a line', ["pod"], registry=registry)
    Gauge("gpu_all", "help", registry=registry).set(plain)
    for label, value in by_label.items():
        labelled.labels(label).set(value)
    page = Samples(generate_latest(registry).decode())
    assert {each.labels["pod"]: each.value for each in page.of("gpu_used")} == by_label
    assert page.total("gpu_all") == plain
    assert page.total("gpu_missing") == 0


@pytest.mark.parametrize(
    "line", ["<html>", "name", 'name{a="b} 1', "name one", "name{a=b} 1", "name 1 now", "na-me 1"]
)
def test_a_line_of_another_form_is_refused(line):
    with pytest.raises(RecordError, match="Prometheus"):
        Samples(f"ok 1\n{line}\n")
