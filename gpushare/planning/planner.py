"""Plan where all members of a gang fit together (pure)."""

from collections.abc import Collection, Generator, Mapping, Sequence

from gpushare.ledger.holds import Slot
from gpushare.objects.model import Pod
from gpushare.placement.reasons import Reason
from gpushare.placement.trial import World
from gpushare.planning.ask import Ask, NoPlan, Plan


class Planner:
    """Plans for one world. It keeps what it measured of the nodes until they change."""

    def __init__(self, world: World) -> None:
        self._world = world

    def plan(self, ask: Ask) -> Generator[None, None, Plan | NoPlan]:
        """Return slots for the members, or why there are none, in steps of at most 2 ms.

        The cluster may change between steps. The slots fit at the moment at which they are
        returned, so take them before anything else runs.
        """
        raise NotImplementedError

    def unusable(
        self,
        slots: Sequence[Slot],
        pods: Mapping[str, Pod],
        owner: str,
        cooling: Collection[str] = (),
    ) -> dict[str, Reason]:
        """Return why slots cannot be used now, by the uid of their pods.

        ``pods`` are by uid. What the owner's hold keeps for these pods does not count. If not all
        slots fit together, earlier ones come first. Slots of pods that are not in ``pods`` count
        and are not judged.
        """
        raise NotImplementedError
