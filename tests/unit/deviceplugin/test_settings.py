"""Flags are parsed, or rejected with the values that are valid."""

import pytest

from deviceplugin import settings
from gpushare.errors import SettingsError


def read(*argv: str, **env: str) -> settings.Settings:
    return settings.read(["--node-name=n", *argv], env)


@pytest.mark.parametrize(
    ("text", "mib"), [("GiB", 1024), ("MiB", 1), ("256MiB", 256), ("2GiB", 2048)]
)
def test_a_memory_unit_has_a_size_and_mib_or_gib(text: str, mib: int) -> None:
    assert read(f"--memory-unit={text}").unit_mib == mib


@pytest.mark.parametrize(
    "flag",
    [
        "--memory-unit=0MiB",
        "--memory-unit=G",
        "--memory-unit=1.5GiB",
        "--memory-unit=-1MiB",
        "--reserved=some",
        "--reserved=-1",
        "--reserve=512",
        "--memory-limit=on",
        "--http-port=65536",
        "--http-port=http",
        "--kubelet-port=0",
        "--health-interval=0",
        "--health-interval=nan",
        "--health-interval=soon",
        "--simulated-gpus=24Gi",
        "--simulated-gpus=24576,",
        "--simulated-gpus=0",
        "--simulated-gpus=" + ",".join(["1024"] * 17),
    ],
)
def test_an_invalid_value_is_rejected_with_its_flag(flag: str) -> None:
    with pytest.raises(SettingsError, match=flag.partition("=")[0]):
        read(flag)


def test_the_node_must_be_known() -> None:
    with pytest.raises(SettingsError, match="NODE_NAME"):
        settings.read([], {})
    assert settings.read([], {"NODE_NAME": "n7"}).node_name == "n7"


def test_the_node_address_comes_from_the_environment_too() -> None:
    assert read(NODE_ADDRESS="10.0.0.7").node_address == "10.0.0.7"


@pytest.mark.parametrize(("text", "mib"), [("driver", -1), ("none", 0), ("512", 512)])
def test_reserved_memory_is_a_word_or_an_amount(text: str, mib: int) -> None:
    assert read(f"--reserved={text}").reserved_mib == mib


@pytest.mark.parametrize("flag", ["--binding=never", "--no-such-flag=1", "--node=n"])
def test_an_unknown_flag_or_choice_is_rejected_by_name(flag: str) -> None:
    with pytest.raises(SettingsError, match=flag.partition("=")[0]):
        read(flag)


def test_simulated_gpus_have_sizes_and_need_nothing_opened() -> None:
    assert read().simulated_mib == ()
    found = read("--simulated-gpus=16384,24576", "--inject=runtime")
    assert (found.simulated_mib, found.inject) == ((16384, 24576), "cdi")
