"""No start exceeds the units of a GPU, and a container that ran may restart."""

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.allocation.rules import check_capacity, grant_of
from deviceplugin.errors import Reason, Refused
from gpushare.contract import (
    ANNOTATION_ASSIGNED,
    ANNOTATION_CARDS,
    ANNOTATION_INDEX,
    ANNOTATION_RUNNING_ON,
)
from gpushare.objects.model import ContainerStatus, PodStatus
from tests.builders import stock
from tests.fakes.pods import RUNNING, as_running, pod, too_large

INVENTORY = stock(16, 16)
UUIDS = ("GPU-0", "GPU-1")


def check(wanted, others, let_start=()) -> None:
    grant = grant_of(wanted, INVENTORY)
    check_capacity(grant, [*others, wanted], INVENTORY, let_start)


def test_a_start_that_exceeds_its_gpu_is_rejected_with_the_amounts() -> None:
    wanted = pod("new", 6, cards=("GPU-1",))
    with pytest.raises(
        Refused, match=r"requests 6 MiB .* GPU-1, which has 16 MiB, .* use 11 MiB"
    ) as refused:
        check(wanted, [pod("old", 11, cards=("GPU-1",), started=True)])
    assert refused.value.reason is Reason.CARD_TOO_FULL
    assert refused.value.pod is wanted


def test_a_started_pod_counts_before_the_kubelet_reports_it() -> None:
    earlier = pod("earlier", 11, cards=("GPU-1",))
    check(pod("new", 6, cards=("GPU-1",)), [earlier])
    with pytest.raises(Refused):
        check(pod("new", 6, cards=("GPU-1",)), [earlier], let_start={earlier.uid})


def test_an_annotation_proves_no_start() -> None:
    forged = pod("forged", 11, cards=("GPU-1",))
    forged.annotations[ANNOTATION_ASSIGNED] = "true"
    check(pod("new", 6, cards=("GPU-1",)), [forged])
    with pytest.raises(Refused):
        check(forged, [pod("old", 6, cards=("GPU-1",), started=True)])


def test_a_container_that_ran_may_restart_on_a_full_gpu() -> None:
    others = [pod("other", 16, cards=("GPU-1",), started=True)]
    check(pod("again", 6, cards=("GPU-1",), started=True), others)
    unseen = pod("unseen", 6, cards=("GPU-1",))
    check(unseen, others, let_start={unseen.uid})


def test_a_container_without_a_share_proves_no_start() -> None:
    others = [pod("other", 16, cards=("GPU-1",), started=True)]
    wanted = pod("new", [0, 6], cards=("GPU-1",))
    status = ContainerStatus("app-0", "x://app-0", RUNNING)
    helped = PodStatus("Running", container_statuses=(status,))
    with pytest.raises(Refused):
        check(msgspec.structs.replace(wanted, status=helped), others)


def test_a_pod_on_an_unknown_gpu_uses_no_units() -> None:
    check(pod("new", 16, cards=("GPU-1",)), [pod("stranger", 16, started=True)])


@given(
    st.lists(
        st.tuples(
            st.integers(1, 20),
            st.sampled_from([("GPU-0",), ("GPU-1",), UUIDS]),
        ),
        max_size=12,
    )
)
def test_no_order_of_starts_exceeds_a_gpu(asked) -> None:
    running = []
    held = dict.fromkeys(UUIDS, 0)
    for number, (units, cards) in enumerate(asked):
        labels = {"aliyun.com/gpu-count": str(len(cards))}
        amount = units * len(cards)
        new = pod(f"p{number}", amount, cards=cards, labels=labels)
        fits = all(held[card] + units <= 16 for card in cards)
        try:
            check(new, running)
        except Refused:
            assert not fits
        else:
            assert fits
            for card in cards:
                held[card] += units
            running.append(pod("x", amount, cards=cards, labels=labels, started=True))


KEYS = st.sampled_from([ANNOTATION_INDEX, ANNOTATION_CARDS, ANNOTATION_RUNNING_ON, "other"])
WRITTEN = st.sampled_from(["", "0", "7", "GPU-0", "GPU-1,GPU-0", "GPU-9", "{}", ","])


@given(
    st.dictionaries(KEYS, WRITTEN),
    st.lists(st.sampled_from([0, 4, 40]), min_size=1, max_size=3),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["late", "early", ""]),
)
def test_the_plugin_starts_no_pod_that_counts_on_no_gpu(annotations, units, many, runs, binding):
    made = (
        too_large("a", units, annotations=annotations)
        if many
        else pod("a", units, annotations=annotations)
    )
    found = as_running(made) if runs else made
    inventory = replace(INVENTORY, binding=binding)
    share = found.share(inventory)
    try:
        cards = {card.uuid for card in grant_of(found, inventory).cards}
    except Refused:
        cards = set()
    counted = {
        card.uuid for card in inventory.cards if share is not None and share.may_use(card.uuid)
    }
    assert cards <= counted
    if any(units) and not annotations and not runs and binding == "late":
        assert not counted
    if runs and any(units):
        assert counted
