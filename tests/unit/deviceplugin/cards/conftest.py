"""A node whose two GPUs are healthy."""

import pytest

from tests.fakes.node_cards import FIRST, SECOND, Node


@pytest.fixture
def node() -> Node:
    made = Node()
    made.show(FIRST, SECOND)
    return made
