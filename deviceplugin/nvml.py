"""The one place that talks to NVML: the cards as the driver sees them.

Calls block, and may block for long on a sick machine: keep them off the event loop. A load of the
library that failed is tried again at the next call, so a driver installed later is found.
"""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, Final

import pynvml  # noqa: TID251 - this is the adapter that the rule names

from deviceplugin.driver import PhysicalCard, ProcessMemory, Seen, UnreadableCard
from deviceplugin.errors import DriverError

_MIB: Final = 1 << 20
_NO_SUCH_QUERY: Final = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    }
)


class Nvml:
    """The real driver, through pynvml: a ``driver.Backend``."""

    def __init__(self) -> None:
        self._is_open = False

    def cards(self) -> tuple[Seen, ...]:
        try:
            if not self._is_open:
                pynvml.nvmlInit()
                self._is_open = True
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as err:
            self.close()
            raise DriverError(f"NVML does not answer: {err}") from err
        return tuple(_card(position) for position in range(count))

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            try:
                pynvml.nvmlShutdown()
            except pynvml.NVMLError as err:
                raise DriverError(f"NVML could not be shut down: {err}") from err


def _card(position: int) -> Seen:
    uuid = ""
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(position)
        uuid = pynvml.nvmlDeviceGetUUID(handle)
        total, reserved = _memory(handle)
        mig = _if_supported(lambda: pynvml.nvmlDeviceGetMigMode(handle))
        return PhysicalCard(
            uuid=uuid,
            minor=pynvml.nvmlDeviceGetMinorNumber(handle),
            model=pynvml.nvmlDeviceGetName(handle),
            memory_mib=total // _MIB,
            reserved_mib=None if reserved is None else -(-reserved // _MIB),
            is_mig=bool(mig and mig[0] == pynvml.NVML_DEVICE_MIG_ENABLE),
        )
    except Exception as err:  # noqa: BLE001 - NVML's errors, and pynvml's for what it cannot decode
        return UnreadableCard(position, uuid, str(err))


def _memory(handle: Any) -> tuple[int, int | None]:
    """Bytes in all, and those that the driver keeps; version 1 of the query does not tell."""
    newer = _if_supported(
        lambda: pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    )
    if newer is not None:
        return newer.total, newer.reserved
    return pynvml.nvmlDeviceGetMemoryInfo(handle).total, None


def _if_supported(query: Callable[[], Any]) -> Any:
    try:
        return query()
    except pynvml.NVMLError as err:
        if err.value in _NO_SUCH_QUERY:
            return None
        raise


class NvmlProcesses:
    """Which processes use the cards: a ``driver.ProcessSource`` with a session of its own.

    The library counts its users, so a session that ends takes nothing from another thread's.
    """

    def __init__(self) -> None:
        self._is_open = False

    def processes(self) -> Mapping[str, tuple[ProcessMemory, ...] | None]:
        try:
            if not self._is_open:
                pynvml.nvmlInit()
                self._is_open = True
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as err:
            if self._is_open:
                self._is_open = False
                with contextlib.suppress(pynvml.NVMLError):  # why it does not answer is the news
                    pynvml.nvmlShutdown()
            raise DriverError(f"NVML does not tell processes: {err}") from err
        found = (_processes(position) for position in range(count))
        return {uuid: processes for uuid, processes in found if uuid}


def _processes(position: int) -> tuple[str, tuple[ProcessMemory, ...] | None]:
    uuid = ""
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(position)
        uuid = pynvml.nvmlDeviceGetUUID(handle)
        computing = pynvml.nvmlDeviceGetComputeRunningProcesses_v3(handle)
        drawing = _if_supported(lambda: pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3(handle))
        # A process that computes and draws is in both lists, each time with all that it has.
        used = {each.pid: each.usedGpuMemory for each in (*computing, *(drawing or ()))}
        return uuid, tuple(ProcessMemory(pid, amount) for pid, amount in used.items())
    except Exception:  # noqa: BLE001 - NVML's errors, and pynvml's for what it cannot decode
        # A lost card, or a driver that does not tell: the health watch says which.
        return uuid, None
