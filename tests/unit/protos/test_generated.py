"""The generated code is what the .proto files say."""

import pytest

from protos.generate import drifted


def test_the_generated_code_is_what_the_protos_generate() -> None:
    pytest.importorskip("grpc_tools", reason="grpcio-tools, of the dev dependencies, is missing")
    assert drifted() == []
