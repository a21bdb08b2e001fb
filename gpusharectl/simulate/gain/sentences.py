"""Write the gain in sentences (pure)."""

from collections.abc import Iterator
from typing import Final

from gpushare.text.amounts import free_gib, needed_gib
from gpushare.text.counted import counted
from gpusharectl.simulate import view
from gpusharectl.simulate.gain.needs import By
from gpusharectl.simulate.gain.parts import BY_MEMORY
from gpusharectl.simulate.other_systems.node_gpus import Sharing

_STATE_NEEDS: Final = (
    "The files do not say how much memory these pods use: state it with --assume-memory GIB, or "
    "with --usage FILE from Prometheus."
)


def lines(found: view.Gain) -> Iterator[str]:
    """Yield the gain in sentences, the assumptions last."""
    yield from today(found)
    yield from if_shared(found)
    if found.assumed is not None and found.assumed.by == By.EXAMPLE and found.assumed.pods:
        yield _STATE_NEEDS
    has_replicas = any(part.sharing in {Sharing.TIME_SLICING, Sharing.MPS} for part in found.parts)
    replicas = " A replica counts as its part of the GPU." if has_replicas else ""
    yield f"Notebooks are counted by GPU memory, not by CPU or taints.{replicas}"


def today(found: view.Gain) -> Iterator[str]:
    """Yield what pods use, and how many notebooks would fit."""
    size = f"of {free_gib(found.notebook_mib)}"
    for part in found.parts:
        text = _sentence(part, size, found.pending)
        yield f"In namespace {found.namespace}, {text}" if found.namespace else text


def if_shared(found: view.Gain) -> Iterator[str]:
    """Yield what would change if the pods with whole GPUs requested memory."""
    assumed = found.assumed
    if assumed is None or not (assumed.pods or assumed.pending or assumed.by != By.EXAMPLE):
        return
    texts = [_moved(assumed) if assumed.pods else "No pod uses a whole GPU"]
    texts += [_started(assumed)] if assumed.pending else []
    yield f"{', and '.join(texts)}. Then {_free(assumed, found.notebook_mib)}."


def _sentence(part: view.GainPart, size: str, pending: int) -> str:
    pods = f"{counted(part.pods, 'pod')} {'uses' if part.pods == 1 else 'use'}"
    gpus, fit = counted(part.gpus, "GPU"), counted(part.fit, "more notebook")
    today = counted(part.fit_today, "more notebook")
    match part.sharing:
        case Sharing.WHOLE:
            more = f", and {counted(pending, 'pod')} {_be(pending)} Pending for whole GPUs"
            text = f"{pods} {part.used} of {gpus} whole{more if pending else ''}"
            if not part.fit:
                return f"{text}: no notebook {size} fits."
            return (
                f"{text}. Today {today} {size} would fit, "
                f"and {part.fit} if GPUs were shared by memory."
            )
        case Sharing.HAMI:
            also = (
                "also with HAMi"
                if part.fit_today == part.fit
                else (f"but only {part.fit_today} by HAMi's number of pods on each GPU")
            )
            return f"{pods} HAMi's shares of {gpus}: {fit} {size} would fit, {also}."
        case _ if part.sharing == BY_MEMORY:
            return f"{pods} {part.used} of {gpus} shared by memory: {fit} {size} would fit."
        case _:
            text = (
                f"{pods} {part.used} of {counted(part.replicas, 'replica')} of {gpus} "
                f"({part.sharing}). Today {today} {size} could start"
            )
            if part.fit < part.fit_today:
                return (
                    f"{text}, but there is memory for {part.fit}: gpushare would start only those."
                )
            return f"{text}, and {part.fit} if GPUs were shared by memory."


def _moved(found: view.Assumed) -> str:
    one = found.pods == 1
    all_keep = "it keeps its GPUs whole" if one else f"{_all(found.pods, 'pod')} keep theirs whole"
    if found.unknown == found.pods:
        return f"No pod with whole GPUs has a measured use: {all_keep}"
    if found.smaller == found.pods and found.mib_per_gpu is not None:
        amount, largest = needed_gib(found.mib_per_gpu), free_gib(found.largest_mib)
        if found.largest_mib < found.mib_per_gpu:
            return f"No whole GPU has {amount}, the largest has {largest}: {all_keep}"
        return f"No pod is on GPUs with {amount}: {all_keep}"
    pods = "the pod" if one else f"each of the {found.pods} pods"
    gpus, who = counted(found.gpus, "GPU"), "it" if one else "they"
    return (
        f"{'For example, if' if found.by == By.EXAMPLE else 'If'} {pods} requested "
        f"{_wanted(found)}{_kept(found)}, {who} would "
        + (
            f"still use {gpus}"
            if found.gpus == found.gpus_today
            else f"use {gpus} instead of {found.gpus_today}"
        )
    )


def _wanted(found: view.Assumed) -> str:
    amount = needed_gib(found.mib_per_gpu or 0)
    if found.by != By.USAGE:
        return f"{amount} of each GPU"
    most = "the most that it used of a GPU"
    return most if found.mib_per_gpu is None else f"{most}, or {amount} if that is not known"


def _kept(found: view.Assumed) -> str:
    """Say how many pods keep their GPUs whole, and why; empty if none does."""
    why = (
        (found.unknown, "without a measured use"),
        (found.smaller, "on smaller GPUs"),
        (found.not_placed, "without room elsewhere"),
    )
    texts = [f"{number} {text}" for number, text in why if number]
    number = found.unknown + found.smaller + found.not_placed
    keep = "keeps its GPUs" if number == 1 else "keep theirs"
    return f" ({' and '.join(texts)} {keep} whole)" if texts else ""


def _started(found: view.Assumed) -> str:
    amount = ""
    if not found.pods and found.mib_per_gpu is not None:
        amount = f" if they requested {needed_gib(found.mib_per_gpu)} of each GPU"
    pods = counted(found.pending, "Pending pod")
    if found.mib_per_gpu is None:
        return f"{pods} without a measured use would still wait"
    if found.pending == 1:
        return f"the Pending pod would {'' if found.started else 'not '}start{amount}"
    if found.started == found.pending:
        return f"{_all(found.pending, 'Pending pod')} would start{amount}"
    return f"{found.started} of {pods} would start{amount}"


def _free(found: view.Assumed, notebook_mib: int) -> str:
    fit = f"{counted(found.fit, 'notebook')} of {free_gib(notebook_mib)} would fit"
    if not found.free_gpus:
        return f"no GPU could be given back, and {fit}"
    gpus, nodes = counted(found.free_gpus, "GPU"), counted(found.free_nodes, "whole node")
    some = f", {found.free_gpus_of_nodes} of them as {nodes}," if found.free_nodes else ""
    every = f" as {nodes}" if found.free_gpus_of_nodes == found.free_gpus else some
    return f"{gpus} could be given back{every} or {fit}"


def _all(number: int, one: str) -> str:
    """Return ``both pods`` or ``all 3 pods``."""
    return f"both {one}s" if number == 2 else f"all {counted(number, one)}"  # noqa: PLR2004


def _be(number: int) -> str:
    return "is" if number == 1 else "are"
