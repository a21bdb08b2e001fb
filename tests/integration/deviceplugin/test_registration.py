"""The kubelet gets the devices at once, and again whenever it has lost them."""

import pytest
from prometheus_client import REGISTRY

from deviceplugin.server import registration
from gpushare.kube.backoff import Backoff
from tests.fakes.driver import FakeDriver, card
from tests.fakes.kubelet import FakeKubelet
from tests.integration.deviceplugin.plugin import Plugin
from tests.waiting import eventually

pytestmark = pytest.mark.integration


@pytest.fixture
def plugin(folder, kubelet: FakeKubelet) -> Plugin:
    return Plugin(folder, kubelet, FakeDriver(card(0), card(1)))


async def test_every_unit_of_every_gpu_is_offered(plugin: Plugin, kubelet: FakeKubelet) -> None:
    async with plugin.running():
        await kubelet.until(lambda: kubelet.allocatable == 30)
    assert kubelet.options.pre_start_required
    assert kubelet.options.get_preferred_allocation_available


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A registration that has failed is tried again only after minutes, or for a reason."""
    monkeypatch.setattr(registration, "Backoff", lambda *_: Backoff(3600.0, 3600.0))


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("leave_socket", [False, True])
async def test_the_socket_of_a_restarted_kubelet_is_a_reason_to_register_at_the_first_try(
    plugin: Plugin, kubelet: FakeKubelet, leave_socket: bool
) -> None:
    async with plugin.running():
        await kubelet.until(lambda: kubelet.allocatable == 30)
        await kubelet.stop(leave_socket=leave_socket)
        why = "registration failed" if leave_socket else "does not exist"
        await eventually(lambda: why in plugin.registrar.why_not)
        failed = failures()
        await kubelet.start()
        await kubelet.until(lambda: kubelet.registrations >= 2 and kubelet.allocatable == 30)
        assert failures() == failed


def failures() -> float | None:
    name = "gpushare_deviceplugin_registrations_total"
    return REGISTRY.get_sample_value(name, {"outcome": "error"})


async def test_the_socket_is_deleted_when_the_plugin_has_stopped(
    plugin: Plugin, kubelet: FakeKubelet
) -> None:
    async with plugin.running():
        await kubelet.until(lambda: kubelet.allocatable == 30)
    assert not plugin.endpoint.path.exists()
    sockets = [path.name for path in kubelet.folder.iterdir() if path.is_socket()]
    assert sockets == ["kubelet.sock"]


async def test_the_largest_accepted_list_is_accepted_when_all_is_unhealthy(
    folder, kubelet: FakeKubelet
) -> None:
    driver = FakeDriver(card(0, 104_857), card(1, 104_858))
    plugin = Plugin(folder, kubelet, driver, unit_mib=1)
    async with plugin.running():
        await kubelet.until(lambda: kubelet.allocatable == 209_715)
        driver.silent = "gone"
        await kubelet.until(lambda: kubelet.lists[-1] == 4_194_300)
        assert kubelet.allocatable == 0
        driver.silent = ""
        await kubelet.until(lambda: kubelet.allocatable == 209_715)
        assert kubelet.registrations == 1


async def test_a_unit_that_is_too_small_offers_nothing_and_names_one_that_fits(
    folder, kubelet: FakeKubelet
) -> None:
    plugin = Plugin(folder, kubelet, FakeDriver(*(card(n, 81_920) for n in range(8))), unit_mib=1)
    async with plugin.running():
        await eventually(lambda: "--memory-unit=4MiB" in plugin.registrar.why_not)
    assert kubelet.registrations == 0
