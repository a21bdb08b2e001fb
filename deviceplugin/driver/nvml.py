"""The only module that calls NVML: the GPUs as the driver sees them, and their events.

Calls block, for long on a broken machine: keep them off the event loop. A failed load of the
library is retried at the next call, so a driver installed later is found. The library's own count
of users separates checks and events: each opens and closes it for itself. A check queries each GPU
in a thread of its own, and passes those that answer to the one thread that waits for events. That
thread only registers a GPU, right after it has answered, so a GPU that hangs does not block the
events of the others.
"""

import contextlib
import ctypes
import threading
from collections.abc import Callable
from typing import Any, Final

import pynvml  # noqa: TID251 - this is the adapter that the rule names

from deviceplugin.driver.interface import (
    CardEvent,
    PhysicalCard,
    ProcessMemory,
    Seen,
    UnreadableCard,
)
from deviceplugin.errors import DriverError, DriverReplaced

_MIB: Final = 1 << 20
_NO_SUCH_QUERY: Final = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    }
)
_NO_SUCH_FIELD: Final = _NO_SUCH_QUERY | {pynvml.NVML_ERROR_INVALID_ARGUMENT}
_DEFINITE: Final = frozenset({pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED})
# Events that are a reason to check at once.
_EVENTS: Final = (
    pynvml.nvmlEventTypeXidCriticalError
    | pynvml.nvmlEventMigConfigChange
    | pynvml.nvmlEventTypeGpuUnavailableError
    | pynvml.nvmlEventTypeGpuRecoveryAction
)


class Nvml:
    """The real driver, through pynvml: a ``driver.Backend``."""

    def __init__(self) -> None:
        self._is_open = False
        self._is_listening = False
        self._events: Any = None
        self._appeared: dict[int, tuple[Any, str]] = {}  # handle, UUID; not registered
        self._has_appeared = threading.Event()
        self._handles: dict[int, int] = {}  # by position, of those that answer
        self._registered: set[int] = set()  # handles
        self._deaf: set[int] = set()  # handles of GPUs without events
        self._uuids: dict[int, str] = {}  # of all ever registered: a lost GPU reports none
        self.answered = 0  # two threads may lose an increment: it only has to change

    @property
    def heard(self) -> frozenset[str]:
        uuids = self._uuids  # read before the registered ones, all of which it has
        return frozenset(uuids[address] for address in self._registered.copy())

    def count(self) -> int:
        try:
            if not self._is_open:
                self._ask(pynvml.nvmlInit)
                self._is_open = True
            return int(self._ask(pynvml.nvmlDeviceGetCount))
        except pynvml.NVMLError as err:
            with contextlib.suppress(DriverError):  # why it does not answer matters more
                self.close()
            raise _no_answer(err) from err

    def next_event(self, seconds: float) -> CardEvent | None:
        try:
            if not self._is_listening:
                pynvml.nvmlInit()
                self._is_listening = True
                self._events = pynvml.nvmlEventSetCreate()
            self._listen()
            if not self._uuids:
                self._has_appeared.wait(seconds)
                return None
            data = pynvml.nvmlEventSetWait_v2(self._events, int(seconds * 1000))
        except pynvml.NVMLError as err:
            if err.value == pynvml.NVML_ERROR_TIMEOUT:
                return None
            with contextlib.suppress(DriverError):
                self._close_events()
            raise _no_answer(err) from err
        uuid = self._uuids.get(_address(data.device), "")
        is_xid = data.eventType == pynvml.nvmlEventTypeXidCriticalError
        return CardEvent(uuid, int(data.eventData) if is_xid else 0)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            _shut_down()

    def card(self, position: int) -> Seen:
        uuid = ""
        try:
            handle = self._ask(pynvml.nvmlDeviceGetHandleByIndex, position)
            uuid = self._ask(pynvml.nvmlDeviceGetUUID, handle)
            total, reserved = self._memory(handle)
            mig = self._if_supported(pynvml.nvmlDeviceGetMigMode, handle)
            rows = self._if_supported(pynvml.nvmlDeviceGetRemappedRows, handle)
            card = PhysicalCard(
                uuid=uuid,
                minor=self._ask(pynvml.nvmlDeviceGetMinorNumber, handle),
                model=self._ask(pynvml.nvmlDeviceGetName, handle),
                memory_mib=total // _MIB,
                reserved_mib=None if reserved is None else -(-reserved // _MIB),
                is_mig=bool(mig and mig[0] == pynvml.NVML_DEVICE_MIG_ENABLE),
                recovery_action=self._recovery_action(handle),
                rows_failed=bool(rows and rows[3]),
            )
        except pynvml.NVMLError as err:
            if err.value == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
                raise _no_answer(err) from err
            if not uuid:
                away = self._handles.pop(position, 0)
                self._registered.discard(away)
                self._deaf.discard(away)
            return UnreadableCard(position, uuid, str(err), err.value in _DEFINITE)
        except Exception as err:  # noqa: BLE001 - pynvml's own decoding errors
            return UnreadableCard(position, uuid, str(err))
        self._answers(position, handle, uuid)
        return card

    def _memory(self, handle: Any) -> tuple[int, int | None]:
        """Return all bytes, and the reserved ones, which version 1 of the query does not report."""
        query = pynvml.nvmlDeviceGetMemoryInfo
        newer = self._if_supported(query, handle, pynvml.nvmlMemory_v2)
        if newer is not None:
            return newer.total, newer.reserved
        older = self._if_supported(query, handle)
        if older is None:
            raise DriverError(
                "the driver reports no memory of the GPU's own (it may use the machine's), so "
                "there is nothing to share by memory"
            )
        return older.total, None

    def _recovery_action(self, handle: Any) -> int | None:
        fields = [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION]
        found = self._if_supported(pynvml.nvmlDeviceGetFieldValues, handle, fields)
        if found is None or found[0].nvmlReturn in _NO_SUCH_FIELD:
            return None
        if found[0].nvmlReturn:
            raise pynvml.NVMLError(found[0].nvmlReturn)
        return int(found[0].value.uiVal)

    def _answers(self, position: int, handle: Any, uuid: str) -> None:
        """Queue the registration of events of a GPU that answers."""
        address = self._handles[position] = _address(handle)
        if address not in self._registered | self._deaf:
            self._appeared[position] = handle, uuid
            self._has_appeared.set()

    def _listen(self) -> None:
        """Register the events of new GPUs, and of those that were gone."""
        self._has_appeared.clear()
        while self._appeared:
            _, (handle, uuid) = self._appeared.popitem()
            address = _address(handle)
            try:
                supported = pynvml.nvmlDeviceGetSupportedEventTypes(handle) & _EVENTS
                if not supported:
                    self._deaf.add(address)
                    continue
                pynvml.nvmlDeviceRegisterEvents(handle, supported, self._events)
            except pynvml.NVMLError:
                continue  # polled meanwhile; retried when it answers again
            self._uuids[address] = uuid
            self._registered.add(address)

    def _close_events(self) -> None:
        events, self._events = self._events, None
        is_listening, self._is_listening = self._is_listening, False
        self._registered, self._deaf, self._uuids = set(), set(), {}
        try:
            if events is not None:
                pynvml.nvmlEventSetFree(events)
        except pynvml.NVMLError as err:
            raise _no_answer(err) from err
        finally:
            if is_listening:
                _shut_down()

    def _ask(self, function: Callable[..., Any], *words: Any) -> Any:
        found = function(*words)
        self.answered += 1
        return found

    def _if_supported(self, query: Callable[..., Any], *words: Any) -> Any:
        try:
            return _if_supported(query, *words)
        finally:
            self.answered += 1  # an error is an answer, too


def _if_supported(query: Callable[..., Any], *words: Any) -> Any:
    try:
        return query(*words)
    except pynvml.NVMLError as err:
        if err.value in _NO_SUCH_QUERY:
            return None
        raise


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _shut_down() -> None:
    try:
        pynvml.nvmlShutdown()
    except pynvml.NVMLError as err:
        raise DriverError(f"NVML could not be shut down: {err}") from err


def _no_answer(err: Exception) -> DriverError:
    if getattr(err, "value", 0) == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
        return DriverReplaced(
            f"NVML does not answer: {err} The library in this program and the loaded driver have "
            f"different versions: restart this plugin's pod, or the node if that does not help"
        )
    return DriverError(f"NVML does not answer: {err}")


class NvmlProcesses:
    """The processes on the GPUs: a ``driver.ProcessSource`` with a session of its own.

    The library counts its users, so the end of a session does not affect another thread's.
    """

    def __init__(self) -> None:
        self._is_open = False

    def count(self) -> int:
        try:
            if not self._is_open:
                pynvml.nvmlInit()
                self._is_open = True
            return int(pynvml.nvmlDeviceGetCount())
        except pynvml.NVMLError as err:
            if self._is_open:
                self._is_open = False
                with contextlib.suppress(pynvml.NVMLError):  # why it does not answer matters more
                    pynvml.nvmlShutdown()
            raise DriverError(f"NVML does not report processes: {err}") from err

    def processes(self, position: int) -> tuple[str, tuple[ProcessMemory, ...] | None]:
        uuid = ""
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(position)
            uuid = pynvml.nvmlDeviceGetUUID(handle)
            computing = pynvml.nvmlDeviceGetComputeRunningProcesses_v3(handle)
            drawing = _if_supported(pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3, handle)
            # A process that computes and draws is in both, each time with all its memory.
            used = {each.pid: each.usedGpuMemory for each in (*computing, *(drawing or ()))}
            return uuid, tuple(ProcessMemory(pid, amount) for pid, amount in used.items())
        except Exception:  # noqa: BLE001 - NVML's errors and pynvml's decoding errors
            # A lost GPU, or a driver that does not report: the driver watch shows which.
            return uuid, None
