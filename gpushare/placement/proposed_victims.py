"""Judge whether the victims that kube-scheduler proposes make a pod fit on a node's cards (pure).

kube-scheduler proposes victims by the totals of a node. This decides, on an overlay of the ledger,
whether their units are on the cards that the pod needs.
"""

from collections.abc import Iterable

from gpushare.cards.model import Request
from gpushare.ledger.ledger import Ledger
from gpushare.placement import card_choice as cards
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
    """Return why the pod would not fit on ``node`` without ``victims`` (uids); None if it would.

    Only the units of a victim in the ledger become free: an unknown uid, or one on another node,
    frees nothing. All other pods stay, including terminating ones.
    """
    trial = ledger.overlay()
    for uid in victims:
        trial.remove_share(uid)
    account = trial.account(node, besides=pod_uid, priority=priority)
    return cards.why_not(account, request, unit_mib)
