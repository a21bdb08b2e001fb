"""The API server accepts an Event of a pod with any name and a text of any length."""

import re

import pytest

from gpushare.clock import SystemClock
from gpushare.kube import events
from tests.builders import node, pod

SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


@pytest.mark.parametrize("name", ["a", "x" * 253, "a-" * 100 + "b" * 53, "a." * 100 + "b" * 53])
def test_the_name_is_unique_and_the_text_fits(name):
    made = events.made(pod(name), "Why", "because " * 1000, component="c", clock=SystemClock())
    assert SUBDOMAIN.fullmatch(made["metadata"]["name"])
    assert len(made["metadata"]["name"]) <= 253
    assert len(made["message"]) <= events.MAX_MESSAGE
    assert made["involvedObject"]["name"] == name


def test_an_event_of_a_node_is_found_by_its_name():
    made = events.made(node("n", 16), "Why", "because", component="c", clock=SystemClock())
    assert made["metadata"]["namespace"] == "default"
    assert made["involvedObject"]["uid"] == "n"
