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
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pynvml  # noqa: TID251 - this is the adapter that the rule names

from deviceplugin.driver.interface import (
    NO_MINOR,
    CardEvent,
    MemoryLimit,
    PhysicalCard,
    ProcessMemory,
    Query,
    Seen,
    UnreadableCard,
    UtilizationSample,
)
from deviceplugin.errors import DriverError, DriverReplaced
from deviceplugin.settings import CGROUP
from gpushare.clock import Clock, SystemClock

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
_OF_MORE_THAN_A_QUERY: Final = _DEFINITE | {
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    pynvml.NVML_ERROR_UNINITIALIZED,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
}
# Events that are a reason to check at once.
_EVENTS: Final = (
    pynvml.nvmlEventTypeXidCriticalError
    | pynvml.nvmlEventMigConfigChange
    | pynvml.nvmlEventTypeGpuUnavailableError
    | pynvml.nvmlEventTypeGpuRecoveryAction
)
_NO_AMOUNT: Final = 2**64 - 1  # no limit, or not known
_ALL_PERCENT: Final = 100
_SET_LIMITS: Final = "nvmlDeviceSetMemoryLimits_v1"
_UNCORRECTED_SINCE_LOADED: Final = (
    pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
    pynvml.NVML_VOLATILE_ECC,
)


class _Optional:
    """Asks one GPU what it can be offered without; ``failed`` collects the errors."""

    def __init__(self, ask: Callable[..., Any]) -> None:
        self._ask = ask
        self.failed: dict[Query, str] = {}

    def ask(self, query: Query, *words: Any) -> Any:
        """Return the answer; None where the driver has no such query, or where it fails.

        Raises NVMLError where the error is about the whole GPU or the library.
        """
        try:
            return self._ask(getattr(pynvml, query.removesuffix("_v2")), *words)
        except Exception as err:  # noqa: BLE001 - NVML's errors, and pynvml's own of decoding
            self.fail(query, err)
            return None

    def fail(self, query: Query, err: Exception) -> None:
        if getattr(err, "value", 0) in _OF_MORE_THAN_A_QUERY:
            raise err
        self.failed[query] = str(err)


class Nvml:
    """The real driver, through pynvml: a ``driver.Backend``.

    ``cgroup`` is where the machine's cgroups are mounted.
    """

    def __init__(self, cgroup: Path = CGROUP) -> None:
        self._controllers = cgroup / "cgroup.controllers"  # only cgroup v2 has it
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
            card = self._card(handle, uuid)
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

    def _card(self, handle: Any, uuid: str) -> PhysicalCard:
        queries = _Optional(self._if_supported)
        total, reserved = self._memory(handle, queries)
        minor = queries.ask(Query.MINOR, handle)
        rows = queries.ask(Query.REMAPPED_ROWS, handle)
        action = self._recovery_action(handle, queries)
        repair_pending, errors = False, 0
        if action is None and Query.RECOVERY_ACTION not in queries.failed:
            pages = queries.ask(Query.PENDING_PAGES, handle)
            repair_pending = bool((rows and rows[2]) or pages)
            errors = queries.ask(Query.ECC_ERRORS, handle, *_UNCORRECTED_SINCE_LOADED) or 0
        why_no_limit, hides_limits = self._limits_memory(handle)
        return PhysicalCard(
            uuid=uuid,
            minor=NO_MINOR if minor is None else minor,
            model=queries.ask(Query.MODEL, handle) or "",
            memory_mib=total // _MIB,
            reserved_mib=None if reserved is None else -(-reserved // _MIB),
            is_mig=self._is_mig(handle, queries),
            recovery_action=action,
            rows_failed=bool(rows and rows[3]),
            repair_pending=repair_pending,
            uncorrected_errors=errors,
            why_no_limit=why_no_limit,
            hides_limits=hides_limits,
            failed=queries.failed,
        )

    def _memory(self, handle: Any, queries: "_Optional") -> tuple[int, int | None]:
        """Return all bytes, and the reserved ones, which version 1 of the query does not report."""
        newer = queries.ask(Query.RESERVED, handle, pynvml.nvmlMemory_v2)
        if newer is not None:
            return newer.total, newer.reserved
        older = self._if_supported(pynvml.nvmlDeviceGetMemoryInfo, handle)
        if older is None:
            raise DriverError(
                "the driver reports no memory of the GPU's own (it may use the machine's), so "
                "there is nothing to share by memory"
            )
        return older.total, None

    def _limits_memory(self, handle: Any) -> tuple[str, str]:
        """Return why NVIDIA's hook cannot set limits, and why they cannot be read here.

        The hook ends with an error, and the container with it, where the library does not have the
        call, where the machine has no cgroup v2, and where driver or kernel do not support it.
        """
        if not hasattr(pynvml.nvmlLib, _SET_LIMITS):
            return f"{self._driver()} cannot limit memory; R615 and newer can", ""
        if not self._controllers.exists():
            return f"{self._controllers.parent} has no cgroup v2, by which memory is limited", ""
        own = pynvml.c_nvmlGetMemoryLimits_v1_t(str(self._controllers.parent).encode(), 0, 0, 0)
        try:
            self._ask(pynvml.nvmlDeviceGetMemoryLimits_v1, handle, own)
        except pynvml.NVMLError as err:
            if err.value in _NO_SUCH_QUERY:
                why = f"{self._driver()} does not support memory limits for it on this kernel"
                return why, ""
            # Other errors may be about the root of all cgroups alone.
            if err.value == pynvml.NVML_ERROR_NO_PERMISSION:
                return "", f"the driver does not let the plugin read memory limits: {err}"
        return "", ""

    def _driver(self) -> str:
        """Return the driver's name with its version, where it reports one."""
        with contextlib.suppress(pynvml.NVMLError):
            return f"driver {self._ask(pynvml.nvmlSystemGetDriverVersion)}"
        return "the driver"

    def _is_mig(self, handle: Any, queries: "_Optional") -> bool:
        mode = queries.ask(Query.MIG, handle)
        if mode is not None or Query.MIG not in queries.failed:
            return bool(mode and mode[0] == pynvml.NVML_DEVICE_MIG_ENABLE)
        try:  # 0 where MIG is not supported, or not enabled
            return bool(self._if_supported(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle))
        except pynvml.NVMLError:
            return False

    def _recovery_action(self, handle: Any, queries: "_Optional") -> int | None:
        fields = [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION]
        found = queries.ask(Query.RECOVERY_ACTION, handle, fields)
        if found is None or found[0].nvmlReturn in _NO_SUCH_FIELD:
            return None
        if found[0].nvmlReturn:
            queries.fail(Query.RECOVERY_ACTION, pynvml.NVMLError(found[0].nvmlReturn))
            return None
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

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._is_open = False
        self._sampled_us: dict[int, int] = {}  # by position: the time of the newest sample

    def count(self) -> int:
        try:
            if not self._is_open:
                pynvml.nvmlInit()
                self._is_open = True
            return int(pynvml.nvmlDeviceGetCount())
        except pynvml.NVMLError as err:
            if self._is_open:
                self._is_open = False
                self._sampled_us = {}
                with contextlib.suppress(pynvml.NVMLError):  # why it does not answer matters more
                    pynvml.nvmlShutdown()
            raise DriverError(f"NVML does not report processes: {err}") from err

    # All below: a lost GPU, or a driver that does not report. The driver watch shows which.

    def uuid(self, position: int) -> str:
        try:
            return str(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(position)))
        except Exception:  # noqa: BLE001 - NVML's errors and pynvml's decoding errors
            return ""

    def processes(self, position: int) -> tuple[ProcessMemory, ...] | None:
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(position)
            computing = pynvml.nvmlDeviceGetComputeRunningProcesses_v3(handle)
            drawing = _if_supported(pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3, handle)
        except Exception:  # noqa: BLE001
            return None
        # A process that computes and draws is in both, each time with all its memory.
        used = {each.pid: each.usedGpuMemory for each in (*computing, *(drawing or ()))}
        return tuple(ProcessMemory(pid, amount) for pid, amount in used.items())

    def samples(self, position: int) -> tuple[UtilizationSample, ...]:
        # At first, and after the clock was set back, samples from now on.
        now_us = self._clock.wall_ns() // 1000
        since_us = min(now_us, self._sampled_us.get(position, now_us))
        self._sampled_us[position] = since_us
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(position)
            found = pynvml.nvmlDeviceGetProcessUtilization(handle, since_us)
        except Exception:  # noqa: BLE001
            return ()
        # The driver also returns entries that it has not filled.
        real = [
            UtilizationSample(each.pid, each.timeStamp, each.smUtil)
            for each in found
            if each.timeStamp > since_us and each.smUtil <= _ALL_PERCENT
        ]
        self._sampled_us[position] = max((each.at_us for each in real), default=since_us)
        return tuple(real)

    def limit(self, position: int, cgroup: Path) -> MemoryLimit:
        found = pynvml.c_nvmlGetMemoryLimits_v1_t(os.fsencode(cgroup), 0, 0, 0)
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(position)
            pynvml.nvmlDeviceGetMemoryLimits_v1(handle, found)
        except pynvml.NVMLError_NotFound:
            return MemoryLimit()  # nvml.h: the GPU has no limits of this cgroup
        except Exception as err:  # noqa: BLE001
            return MemoryLimit(why_unknown=f"the driver does not report the limit: {err}")
        used = _if_any(found.currentUsed)
        return MemoryLimit(_if_any(found.hardLimit), used, _if_any(found.softLimit) or 0)


def _if_any(amount: int) -> int | None:
    return None if amount == _NO_AMOUNT else amount
