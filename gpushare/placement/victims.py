"""Whether a pod's card set fits on a node once certain pods are gone, and who would have to (pure).

kube-scheduler proposes victims by what a node has in sum. Whether their room lies on the cards that
the pod needs is decided here, on an overlay of the ledger.
"""

from collections.abc import Iterable

from gpushare.cards import Request
from gpushare.ledger import Ledger
from gpushare.placement import cards
from gpushare.placement.reasons import Reason


def why_not_without(
    ledger: Ledger,
    node: str,
    request: Request,
    victims: Iterable[str],
    *,
    unit_mib: int,
    pod_uid: str,
    priority: int,
) -> Reason | None:
    """Why the card set of the pod would not fit on ``node`` with ``victims`` (uids) gone.

    Only what a victim holds by the ledger becomes free: a uid that is unknown here, or that is on
    another node, makes no room. Everybody else stays, also who is about to end.
    """
    trial = ledger.overlay()
    for uid in victims:
        trial.remove_share(uid)
    account = trial.account(node, besides=pod_uid, priority=priority)
    return cards.why_not(account, request, unit_mib)
