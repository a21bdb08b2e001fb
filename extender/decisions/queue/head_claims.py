"""Keep what is claimed for the first entries of the queue that have waited for long (pure).

With backfill, small pods take every GPU that becomes free, and a large pod or gang may never get
enough of them at one time. So the first entry gets a claim: the GPUs that it needs fill up with
nothing of its or a lower priority, until they are free.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

from gpushare.ledger.holds import Claim, Slot
from gpushare.ledger.ledger import Ledger
from gpushare.quota.order import Given, Standing


@dataclass(frozen=True, slots=True)
class HeadClaim:
    """``slots`` are claimed for an entry since ``since``, in seconds of a monotonic clock.

    ``waits_for`` are the uids of the pods that used them then.
    """

    standing: Standing
    slots: tuple[Slot, ...]
    waits_for: frozenset[str]
    since: float


class HeadClaims:
    """The claims for first entries, by owner. The ledger may have lost one, or have another one."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._claims: dict[str, HeadClaim] = {}

    def __iter__(self) -> Iterator[HeadClaim]:
        return iter(list(self._claims.values()))

    def get(self, owner: str) -> HeadClaim | None:
        """Return the claim of an owner, if the ledger still has it as a whole."""
        found = self._claims.get(owner)
        if found is None:
            return None
        kept = self._ledger.claim_of(owner)
        return found if kept is not None and set(kept.slots) == set(found.slots) else None

    def given(self, owner: str) -> Given:
        """Return CLAIM if something is claimed for an owner, else NOTHING."""
        return Given.NOTHING if self.get(owner) is None else Given.CLAIM

    def put(self, claim: HeadClaim) -> None:
        owner, standing = claim.standing.owner, claim.standing
        self._ledger.keep(Claim(owner, claim.slots, inf, standing.priority))
        self._claims[owner] = claim

    def drop(self, owner: str) -> None:
        """Forget a claim. Nothing of it stays claimed, unless it has become that of an eviction."""
        found, kept = self._claims.pop(owner, None), self._ledger.claim_of(owner)
        if found is not None and kept is not None and set(kept.slots) <= set(found.slots):
            self._ledger.drop(Claim, owner)

    def idle_units(self) -> int:
        """Return the units that are free, and used by nobody because of these claims."""
        idle = 0
        for claim in self:
            for slot in claim.slots:
                account = self._ledger.account(slot.node, besides=slot.pod_uid)
                for card in account.cards if account is not None else ():
                    if card.card.uuid in slot.cards:
                        idle += min(slot.units, card.free)
        return idle
