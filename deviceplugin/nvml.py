"""The one place that talks to NVML: the cards as the driver sees them, and their events.

Calls block, and may block for long on a sick machine: keep them off the event loop. A load of the
library that failed is tried again at the next call, so a driver installed later is found. The
library's own count of users keeps looks and events apart: each opens and closes it for itself.
"""

import contextlib
import ctypes
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import pynvml  # noqa: TID251 - this is the adapter that the rule names

from deviceplugin.driver import CardEvent, PhysicalCard, ProcessMemory, Seen, UnreadableCard
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
# Beside XIDs, what is a reason to look at once.
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
        self._registered: frozenset[int] = frozenset()  # handles
        self._uuids: dict[int, str] = {}  # of all that were ever registered: a lost card tells none
        self.answered = 0
        self.heard: frozenset[str] = frozenset()

    def cards(self) -> tuple[Seen, ...]:
        try:
            if not self._is_open:
                self._ask(pynvml.nvmlInit)
                self._is_open = True
            count = self._ask(pynvml.nvmlDeviceGetCount)
        except pynvml.NVMLError as err:
            with contextlib.suppress(DriverError):  # why it does not answer is the news
                self.close()
            raise _no_answer(err) from err
        return tuple(self._card(position) for position in range(count))

    def next_event(self, seconds: float) -> CardEvent | None:
        try:
            if not self._is_listening:
                pynvml.nvmlInit()
                self._is_listening = True
                self._events = pynvml.nvmlEventSetCreate()
            self._listen()
            if not self._uuids:
                time.sleep(seconds)
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

    def _card(self, position: int) -> Seen:
        uuid = ""
        try:
            handle = self._ask(pynvml.nvmlDeviceGetHandleByIndex, position)
            uuid = self._ask(pynvml.nvmlDeviceGetUUID, handle)
            total, reserved = self._memory(handle)
            mig = self._if_supported(pynvml.nvmlDeviceGetMigMode, handle)
            rows = self._if_supported(pynvml.nvmlDeviceGetRemappedRows, handle)
            return PhysicalCard(
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
            return UnreadableCard(position, uuid, str(err), err.value in _DEFINITE)
        except Exception as err:  # noqa: BLE001 - pynvml's own, for what it cannot decode
            return UnreadableCard(position, uuid, str(err))

    def _memory(self, handle: Any) -> tuple[int, int | None]:
        """Bytes in all, and those that the driver keeps; version 1 of the query does not tell."""
        query = pynvml.nvmlDeviceGetMemoryInfo
        newer = self._if_supported(query, handle, pynvml.nvmlMemory_v2)
        if newer is not None:
            return newer.total, newer.reserved
        older = self._if_supported(query, handle)
        if older is None:
            raise DriverError(
                "the driver does not tell how much memory it has of its own (it may use the "
                "machine's), so there is nothing to share by memory"
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

    def _listen(self) -> None:
        """Register the events of cards that are not registered, or not since they were away."""
        there: set[int] = set()
        for handle, uuid in self._handles():
            address = _address(handle)
            if address in self._registered:
                there.add(address)
                continue
            try:
                supported = pynvml.nvmlDeviceGetSupportedEventTypes(handle)
                if supported & _EVENTS:
                    pynvml.nvmlDeviceRegisterEvents(handle, supported & _EVENTS, self._events)
                    there.add(address)
                    self._uuids[address] = uuid
            except pynvml.NVMLError:
                continue  # polled meanwhile, which tells what is wrong with it
        self._registered = frozenset(there)
        self.heard = frozenset(self._uuids[address] for address in there)

    def _handles(self) -> Iterator[tuple[Any, str]]:
        for position in range(pynvml.nvmlDeviceGetCount()):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(position)
                yield handle, pynvml.nvmlDeviceGetUUID(handle)
            except pynvml.NVMLError:
                continue

    def _close_events(self) -> None:
        events, self._events = self._events, None
        is_listening, self._is_listening = self._is_listening, False
        self._registered, self._uuids, self.heard = frozenset(), {}, frozenset()
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
            self.answered += 1  # a refusal is an answer too


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
            f"NVML does not answer: {err} The library in this program and the loaded driver are "
            f"of different versions: restart this plugin's pod, or the node where that does not "
            f"help"
        )
    return DriverError(f"NVML does not answer: {err}")


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
        drawing = _if_supported(pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3, handle)
        # A process that computes and draws is in both lists, each time with all that it has.
        used = {each.pid: each.usedGpuMemory for each in (*computing, *(drawing or ()))}
        return uuid, tuple(ProcessMemory(pid, amount) for pid, amount in used.items())
    except Exception:  # noqa: BLE001 - NVML's errors, and pynvml's for what it cannot decode
        # A lost card, or a driver that does not tell: the health watch says which.
        return uuid, None
