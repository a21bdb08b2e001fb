"""Random small clusters in which pods may move."""

from hypothesis import strategies as st

from gpushare.defragment.model import Movable
from gpushare.defragment.movable import all_movable
from gpushare.objects.model import Pod
from gpushare.process.time_slices import run_all
from tests.unit.gpushare.planning.worlds import pod
from tests.unit.gpushare.preemption.worlds import RunningWorld

CARD = 8


class State:
    """``movables`` are some of the pods of ``world``, ``wanted`` is a Pending pod."""

    def __init__(self, world: RunningWorld, stuck: set[str], wanted: Pod) -> None:
        self.world, self.wanted = world, wanted
        self.movables: tuple[Movable, ...] = tuple(
            each for each in run_all(all_movable(world)) if each.uid not in stuck
        )


@st.composite
def states(draw: st.DrawFn) -> State:
    world = RunningWorld()
    free: dict[str, list[int]] = {}
    cores: dict[str, int] = {}
    for number in range(draw(st.integers(1, 3))):
        name = f"n{number}"
        cards = draw(st.integers(1, 3))
        cores[name] = draw(st.sampled_from((5, 8, 100)))
        free[name] = [CARD] * cards
        world.add(name, *free[name], cpu=cores[name])
    stuck = set()
    for number in range(draw(st.integers(3, 9))):
        name = draw(st.sampled_from(sorted(free)))
        units, cpu = draw(st.integers(1, 6)), draw(st.integers(0, 3))
        count = draw(st.sampled_from((1, 1, 1, 2)))
        room = [index for index, left in enumerate(free[name]) if left >= units]
        if len(room) < count or cpu > cores[name]:
            continue
        chosen = draw(st.permutations(room))[:count]
        for index in chosen:
            free[name][index] -= units
        cores[name] -= cpu
        world.run(f"p{number}", name, units, *chosen, cpu=cpu)
        if draw(st.integers(0, 5)) == 0:
            stuck.add(f"p{number}")
    wanted = pod(
        "wanted",
        draw(st.integers(4, CARD)),
        cards=draw(st.sampled_from((1, 1, 2))),
        cpu=draw(st.integers(0, 3)),
    )
    return State(world, stuck, wanted)
