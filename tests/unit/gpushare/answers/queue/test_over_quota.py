"""What people read when a quota leaves nothing for a pod."""

import pytest

from gpushare.answers.pending import why_pending
from gpushare.answers.pending_text import sentence as sentence_of_pod
from gpushare.answers.queue.over_quota import OverQuota, sentence
from gpushare.answers.queue.quotas import ModelQuota, QuotaList, QuotaView
from gpushare.answers.queue.reported import ReportedQuotas
from gpushare.cards.model import Card
from gpushare.process.time_slices import run_all
from gpushare.quota.reasons import NAMESPACE_ENDS
from gpusharectl.reach.listed_cluster import ListedCluster
from tests.builders import node, pod
from tests.unit.extender.scripted import restocked


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (
            OverQuota("ml", "units", used=60, quota=64, asked=8),
            (
                "namespace ml uses 60 of its quota of 64 units, and the pod asks for 8: it waits "
                "until pods there that use 4 units end, or the quota is raised."
            ),
        ),
        (
            OverQuota("ml", "units", "gang", used=1, quota=1, asked=1),
            (
                "namespace ml uses 1 of its quota of 1 unit, and the gang asks for 1: it waits "
                "until pods there that use 1 unit end, or the quota is raised."
            ),
        ),
        (
            OverQuota("ml", "model", used=6, quota=8, asked=9, model="Tesla T4"),
            (
                "the pod asks for 9 units of Tesla T4, more than the whole quota of namespace ml, "
                "which is 8: ask for less, or have the quota raised."
            ),
        ),
        (
            OverQuota("ml", "model", "gang"),
            (
                "namespace ml has too little left of its quotas for models of GPUs; it waits until "
                "pods there end, or a quota is raised."
            ),
        ),
        (
            OverQuota("ml", "unreadable", problem="it is empty"),
            "the quota of namespace ml cannot be read, so its pods wait: it is empty.",
        ),
        (
            OverQuota("ml", "ending"),
            "namespace ml is being deleted: nothing starts there any more.",
        ),
    ],
)
def test_each_limit_says_what_is_missing_and_what_helps(found, text) -> None:
    assert sentence(found) == text


def of(model: str, number: int):
    cards = (Card(0, f"GPU-{number}", 16, tag=f"a{number}", model=model),)
    return restocked(node(f"n{number}", 16), cards=cards)


def said(waiting, view: QuotaView, *nodes) -> str:
    cluster = ListedCluster(nodes, [waiting])
    cluster.queue = ReportedQuotas(QuotaList([view]))
    found = run_all(why_pending(cluster, waiting))
    return sentence_of_pod(found)


def view(used: int = 0, limit: int | None = None, problem: str = "", **models: tuple[int, int]):
    of_models = {model: ModelQuota(*each) for model, each in models.items()}
    return QuotaView("default", False, used, limit, of_models, 0, 0, problem)


def test_quotas_that_an_extender_reports_are_told_in_the_same_words() -> None:
    t4 = of("T4", 0)
    assert said(pod("p", 4), view(6, 8), t4).startswith(
        "namespace default uses 6 of its quota of 8"
    )
    assert "cannot be read, so its pods wait: x." in said(pod("p", 4), view(problem="x"), t4)
    ends = view(problem=NAMESPACE_ENDS.text)
    assert "is being deleted" in said(pod("p", 4), ends, t4)
    assert said(pod("p", 4), view(4, 8), t4).startswith("its GPU memory fits now")


def test_a_full_quota_of_one_model_is_a_reason_only_where_no_other_model_has_room() -> None:
    t4, a100 = of("T4", 0), of("A100", 1)
    full = view(T4=(6, 8))
    assert said(pod("p", 4), full, t4).startswith(
        "namespace default uses 6 of its quota of 8 units of T4, and the pod asks for 4"
    )
    assert said(pod("p", 4), full, t4, a100).startswith("its GPU memory fits now (n1, GPU 0)")
