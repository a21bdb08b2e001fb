"""What people read when a quota leaves nothing for a pod."""

import pytest

from gpushare.answers.pending.text import sentence as sentence_of_pod
from gpushare.answers.pending.why import why_pending
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
            OverQuota("ml", "units", used=60, quota=64, asked=8, unit_mib=1024),
            (
                "namespace ml uses 60 GiB of its quota of 64 GiB, and the pod requests 8 GiB: it "
                "waits until pods there that use 4 GiB end, or the quota is raised."
            ),
        ),
        (
            OverQuota("ml", "units", "gang", used=1, quota=1, asked=1),
            (
                "namespace ml uses 1 unit of its quota of 1 unit, and the gang requests 1 unit: it "
                "waits until pods there that use 1 unit end, or the quota is raised."
            ),
        ),
        (
            OverQuota("ml", "model", used=6, quota=8, asked=9, model="Tesla T4", unit_mib=256),
            (
                "the pod requests 2.3 GiB, and the whole quota of namespace ml is 2 GiB of Tesla "
                "T4: request 2 GiB or less (`aliyun.com/gpu-mem: 8`), or have the quota raised "
                "(`Tesla T4=9` in `gpushare.aliyun.com/quota`)."
            ),
        ),
        (
            OverQuota("ml", "units", quota=15, asked=40, containers=2, gpus=2, unit_mib=1024),
            (
                "the pod requests 40 GiB, and the whole quota of namespace ml is 15 GiB: request "
                "14 GiB or less (`aliyun.com/gpu-mem: 14` over its containers), or have the quota "
                "raised (`40` in `gpushare.aliyun.com/quota`)."
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
    cluster.queue = ReportedQuotas(QuotaList([view], unit_mib=1024))
    found = run_all(why_pending(cluster, waiting))
    return sentence_of_pod(found)


def view(used: int = 0, limit: int | None = None, problem: str = "", **models: tuple[int, int]):
    of_models = {model: ModelQuota(*each) for model, each in models.items()}
    return QuotaView("default", False, used, limit, of_models, 0, 0, problem)


def test_quotas_that_an_extender_reports_are_told_in_the_same_words() -> None:
    t4 = of("T4", 0)
    assert said(pod("p", 4), view(6, 8), t4).startswith(
        "namespace default uses 6 GiB of its quota of 8 GiB"
    )
    assert "cannot be read, so its pods wait: x." in said(pod("p", 4), view(problem="x"), t4)
    ends = view(problem=NAMESPACE_ENDS.text)
    assert "is being deleted" in said(pod("p", 4), ends, t4)
    assert said(pod("p", 4), view(4, 8), t4).startswith("its GPU memory fits now")


def test_a_full_quota_of_one_model_is_a_reason_only_where_no_other_model_has_room() -> None:
    t4, a100 = of("T4", 0), of("A100", 1)
    full = view(T4=(6, 8))
    assert said(pod("p", 4), full, t4).startswith(
        "namespace default uses 6 GiB of its quota of 8 GiB of T4, and the pod requests 4 GiB"
    )
    assert said(pod("p", 4), full, t4, a100).startswith("its GPU memory fits now (n1, GPU 0)")
