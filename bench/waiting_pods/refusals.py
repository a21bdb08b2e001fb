"""What a pod that filter rejects costs kube-scheduler, by the form of the answer."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Final

from bench.waiting_pods.forms import FORMS, one_name, others_and_one
from bench.waiting_pods.recording import Decide
from bench.waiting_pods.setting import (
    HIGH,
    Attempts,
    Setting,
    filling_pods,
    waiting_pods,
)

WAITING: Final = 100
TIMES: Final = 2
GROUP: Final = "rejected"
_PARTS: Final = ("rate", "cpu", "wall", "answer", "writes")


async def cost(setting: Setting, rounds: int) -> None:
    """Print the cost of an attempt for each form, measured in turn.

    First all nodes are asked for, then half of them, because pods of a lower priority fill the
    others. Pods with a higher priority wait, so that kube-scheduler considers preemption.
    """
    await _cost(setting, rounds, "all of them asked for", FORMS)
    names = setting.node_names
    await setting.create(filling_pods(names[: len(names) // 2]))
    forms = dict(list(FORMS.items())[:2])
    forms["the nodes not asked for and one"] = others_and_one(names)
    await _cost(setting, rounds, "half of them asked for", forms)


async def _cost(setting: Setting, rounds: int, title: str, forms: Mapping[str, Decide]) -> None:
    setting.extender.keep_nodes = False
    made = waiting_pods(GROUP, WAITING, priorityClassName=HIGH)
    names = [each["metadata"]["name"] for each in made]
    setting.extender.decide = one_name
    await setting.create(made)
    await setting.until_unasked()
    found: dict[str, list[Attempts]] = {form: [] for form in forms}
    for _ in range(rounds):
        for form, decide in forms.items():
            setting.extender.decide = decide
            await setting.rejected_again(names, 1)  # conditions change with the form
            one = await setting.rejected_again(names, TIMES)
            found[form].append(one)
            print(f"  {form}: {one.rate:.0f} attempts/s, CPU {one.cpu:.2f} ms", flush=True)
    await setting.delete(GROUP)
    _print(f"{WAITING} rejected pods, {setting.shape.nodes} nodes, {title}", found)


def _print(title: str, found: Mapping[str, Sequence[Attempts]]) -> None:
    print(f"\n{title}; each attempt in ms")
    print("| unresolvable | attempts/s | CPU | time | extender | writes | CPU by round |")
    print("|---|---|---|---|---|---|---|")
    for form, each in found.items():
        middle = [statistics.median(getattr(one, part) for one in each) for part in _PARTS]
        rounds = " ".join(f"{one.cpu:.2f}" for one in each)
        print(
            f"| {form} | {' | '.join(f'{value:.2f}' for value in middle)} | {rounds} |", flush=True
        )
