"""Who uses how much: sums by namespace, one namespace, and Pending pods by name."""

import datetime as dt

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gpushare.answers import explain
from gpushare.answers.inspect import view_node
from gpushare.answers.pending.of_pod import unseen
from gpushare.answers.pending.text import sentence
from gpushare.cards.model import Share
from gpushare.contract import ANNOTATION_CARDS
from gpushare.ledger.accounts import Reserve
from gpushare.ledger.ledger import Ledger
from gpushare.process.time_slices import run_all
from gpusharectl.inspect import namespaces, summary
from gpusharectl.inspect.lines import draw
from gpusharectl.inspect.summary import Listed, Scope
from gpusharectl.inspect.sums import below
from gpusharectl.reach.listed_cluster import ListedCluster
from tests.builders import node, pod, stock

NOW = dt.datetime(2026, 11, 23, 7, tzinfo=dt.UTC)


def of(namespace, found, at="2026-11-23T06:48:00Z"):
    meta = found.metadata
    named = msgspec.structs.replace(meta, namespace=namespace, creation_timestamp=at)
    return msgspec.structs.replace(found, metadata=named)


def on(name, units, where, *cards):
    decided = {ANNOTATION_CARDS: ",".join(f"GPU-{card}" for card in cards)}
    labels = {"aliyun.com/gpu-count": str(len(cards))} if len(cards) > 1 else {}
    return pod(name, units, node=where, annotations=decided, labels=labels)


NODES = [node("n1", 81920, 81920), node("n2", 81920)]
PODS = [
    of("serving", on("llama", 40960, "n1", 0)),
    of("ml", on("both", 20480, "n1", 0, 1)),
    of("ml", on("nb", 8192, "n2", 0)),
    of("ml", pod("train", 100_000)),
    of("ops", pod("tiny", 512), at="2026-11-23T06:59:30Z"),
]


TOO_LARGE = (
    "requests 97.7 GiB on one GPU, larger than any GPU (the largest has 80 GiB). It fits "
    "if it requests 72 GiB or less (`aliyun.com/gpu-mem: 73728`). Two GPUs of a node are large "
    'enough: set the label `aliyun.com/gpu-count: "2"`.'
)
FITS = "its GPU memory fits now (n1, GPU 0), but kube-scheduler has not placed it there yet."


def text(found, *, whole=False):
    shown = [*draw(found, NOW), *below(found, NOW, whole=whole)]
    return [line.plain for line in shown]


def test_namespaces_are_summed_in_the_order_of_their_use_and_pending_pods_named():
    found = summary.of_lists(Listed(NODES, PODS))
    assert text(found)[-7:] == [
        "NAMESPACE    USED  SHARE  PODS  PENDING",
        "serving    40 GiB    17%     1        0",
        "ml         28 GiB    12%     2        1",
        "ops         0 GiB     0%     0        1",
        "2 Pending pods",
        f"  ml/train  12m  {TOO_LARGE}",
        f"  ops/tiny  30s  {FITS}",
    ]


def test_one_namespace_has_its_nodes_gpus_pods_pending_pods_and_sum():
    found = summary.of_lists(Listed(NODES, PODS), scope=Scope(namespace="ml"))
    assert [line.rstrip() for line in text(found)] == [
        "n1  20 GiB of 160 GiB used by ml  not ready",
        "  0 ▕████░░░░░░░░░░░░░░░░············▏ 10 GiB of 80 GiB used",
        "     █ ml/both  10 GiB",
        "  1 ▕████····························▏ 10 GiB of 80 GiB used",
        "     █ ml/both  10 GiB",
        "n2  8 GiB of 80 GiB used by ml  not ready",
        "  0 ▕████····························▏  8 GiB of 80 GiB used",
        "     █ ml/nb  8 GiB",
        "namespace ml: 28 GiB used by 2 pods on 3 GPUs of 2 nodes, 12% of the total",
        "1 Pending pod",
        f"  ml/train  12m  {TOO_LARGE}",
        "░ used by other namespaces, or reserved",
    ]
    none = summary.of_lists(Listed(NODES, PODS), scope=Scope(namespace="none"))
    assert text(none) == ["no pod of namespace none uses GPU memory"]


def test_one_namespace_can_be_summed_by_those_who_may_list_only_its_pods():
    mine = [each for each in PODS if each.metadata.namespace == "ml"]
    listed = Listed(NODES, mine, "ml", ("pods of other namespaces are not shown: why",))
    found = summary.of_lists(listed, scope=Scope(namespace="ml"))
    assert found.summary is None, "what is free is not known"
    assert (found.namespaces[0].used, found.namespaces[0].waiting) == (28672, 1)
    shown = text(found)
    asks = "requests 97.7 GiB on one GPU; pods of other namespaces are not visible here."
    assert shown[-2] == f"  ml/train  12m  {asks}"
    assert shown[-1] == "pods of other namespaces are not shown: why"
    assert not any("░" in line for line in shown)
    of_another = summary.of_lists(listed, scope=Scope(namespace="serving"))
    assert of_another.namespaces is None


def test_of_many_namespaces_and_pending_pods_the_first_are_shown_and_all_with_details():
    pods = [of(f"team-{number:02}", pod(f"p{number}", 1)) for number in range(32)]
    found = summary.of_lists(Listed(NODES, pods))
    shown, whole = text(found), text(found, whole=True)
    assert shown[-1] == "  and 12 more (-d)"
    assert "and 22 more namespaces (-d)" in shown
    assert len(whole) == len(shown) - 2 + 12 + 22
    assert len(found.waiting) == len(found.namespaces) == 32


def test_the_longest_waiting_pod_is_named_first_and_a_bad_request_by_its_error():
    young = of("a", pod("young", 8), at="2026-11-23T06:59:59Z")
    old = of("z", pod("old", "8.5"), at="2026-11-20T07:00:00Z")
    unknown = of("z", pod("unknown", 8), at=None)
    found = summary.of_lists(Listed(NODES, [young, old, unknown]))
    rows = [line.split(maxsplit=2) for line in text(found)[-3:]]
    assert [row[:2] for row in rows] == [["z/unknown", "?"], ["z/old", "3d"], ["a/young", "1s"]]
    assert "not a whole number" in rows[1][2]
    assert [each.units for each in found.waiting] == [8, 0, 8]


def test_a_pending_pod_has_the_sentence_of_explain_with_and_without_the_nodes():
    pods = [*PODS, of("ml", pod("gated", 8))]
    found = summary.of_lists(Listed(NODES, pods))
    for each in found.waiting:
        [asked] = [one for one in pods if one.metadata.name == each.name]
        view = run_all(explain.explain(ListedCluster(NODES, pods), asked, None, now=0.0))
        assert each.why == view.says
    few = summary.of_lists(Listed(NODES, pods, "ml", ("why",)))
    assert {each.why for each in few.waiting} == {
        sentence(unseen(each, 1)) for each in pods if not each.node
    }


def test_sentences_have_a_limit_and_equal_ones_count_once():
    alike = [of("ml", pod(f"a{number}", 100_000)) for number in range(9)]
    pods = [*alike, of("ml", pod("b", 100_001)), of("ml", pod("c", 100_000))]
    found = summary.of_lists(Listed(NODES, pods), scope=Scope(sentences=1))
    whys = {each.name: each.why for each in found.waiting}
    assert whys["a8"] == whys["c"] == TOO_LARGE.replace("72 ", "80 ").replace("73728", "81920")
    assert whys["b"] == "see `gpushare explain pod b -n ml`"


def test_what_an_extender_reports_is_summed_too_and_its_reservations_are_not_a_namespaces():
    ledger = Ledger()
    ledger.set_inventory("n1", stock(16))
    ledger.put_share(Share("a", "ml", "a", "n1", 4, ("GPU-0",)))
    ledger.reserve(Reserve("b", "ml", "b", "n1", ("GPU-0",), 8, 1))
    told = [view_node(ledger, "n1")]
    found = summary.of_extender(told, ["why"], Scope(namespace="ml"))
    assert (found.namespaces[0].used, found.namespaces[0].share) == (4, 0.25)
    assert "▕████████░░░░░░░░░░░░░░░░········▏ 4 MiB of 16 MiB used" in text(found)[1]


SHARES = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c"]),
        st.sampled_from(["n1", "n2"]),
        st.sampled_from([(), ("GPU-0",), ("GPU-1",), ("GPU-0", "GPU-1")]),
        st.integers(1, 40),
    ),
    max_size=12,
)


@given(SHARES)
def test_namespaces_add_up_to_what_is_used_and_to_what_each_of_them_shows(shares):
    ledger = Ledger()
    for name in ("n1", "n2"):
        ledger.set_inventory(name, stock(100, 100))
    for number, (namespace, name, cards, units) in enumerate(shares):
        why = "" if cards else "no decision"
        share = Share(f"u{number}", namespace, f"p{number}", name, units, cards, why_unplaced=why)
        ledger.put_share(share)
    views = [view_node(ledger, name) for name in ("n1", "n2")]
    sums = namespaces.sums(views, 1, None)
    assert sum(each.used for each in sums) == summary.summary_of(views, 1).used
    assert sum(each.pods for each in sums) == len(shares)
    for each in sums:
        shown = namespaces.only(views, each.namespace)
        assert sum(node.used for node in shown) == each.used
