"""The condition of a pod that cannot start is correct, written once, and resolved."""

from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.errors import Reason
from deviceplugin.report.rules import MAX_MESSAGE, Verdict, condition_due, is_reported
from gpushare.contract import CONDITION_CARD_USABLE
from gpushare.objects.model import PodCondition
from tests.fakes.pods import pod

POD = pod("a")
TRUE = PodCondition(CONDITION_CARD_USABLE, "True", "Started", "")


def refused(reason: Reason = Reason.CARD_UNHEALTHY, text: str = "why") -> Verdict:
    return Verdict(POD, reason, text)


def unusable(reason: str = "CardUnhealthy", text: str = "why") -> PodCondition:
    return PodCondition(CONDITION_CARD_USABLE, "False", reason, text)


verdicts = st.one_of(
    st.none(),
    st.just(Verdict(POD)),
    st.builds(Verdict, st.just(POD), st.sampled_from(Reason), st.text(max_size=3)),
)
conditions = st.one_of(
    st.none(), st.just(TRUE), st.builds(unusable, st.sampled_from([*Reason, "Forged"]))
)


def test_a_rejected_pod_has_a_condition_with_the_reason() -> None:
    assert condition_due(None, refused(), runs=False) == unusable()
    assert condition_due(unusable("CardGone"), refused(), runs=True) == unusable()


def test_a_pod_without_trouble_gets_no_condition() -> None:
    assert condition_due(None, Verdict(POD), runs=True) is None
    assert condition_due(None, None, runs=True) is None


def test_the_condition_becomes_true_when_a_pod_may_start() -> None:
    assert condition_due(unusable(), Verdict(POD), runs=False).status == "True"


def test_after_a_restart_a_running_container_proves_the_condition_wrong() -> None:
    assert condition_due(unusable(), None, runs=True).status == "True"
    assert condition_due(unusable(), None, runs=False) is None


def test_a_running_container_does_not_hide_the_rejection_of_another() -> None:
    assert condition_due(unusable(), refused(), runs=True) is None


def test_a_long_text_is_cut_to_what_is_compared() -> None:
    written = condition_due(None, refused(text="x" * 5000), runs=False)
    assert len(written.message) == MAX_MESSAGE
    assert condition_due(written, refused(text="x" * 5000), runs=False) is None


@given(conditions, verdicts, st.booleans())
def test_a_written_condition_is_not_written_again(present, last, runs) -> None:
    written = condition_due(present, last, runs=runs)
    if written is not None:
        assert written != present
        assert condition_due(written, last, runs=runs) is None


@given(conditions, verdicts, st.booleans())
def test_the_condition_is_false_only_after_a_rejection(present, last, runs) -> None:
    written = condition_due(present, last, runs=runs)
    if written is not None and written.status == "False":
        assert last.reason == written.reason


def test_an_event_is_repeated_only_for_another_reason() -> None:
    assert is_reported(unusable(), Reason.CARD_UNHEALTHY)
    assert not is_reported(unusable(), Reason.CARD_GONE)
    assert not is_reported(TRUE, Reason.CARD_UNHEALTHY)
    assert not is_reported(None, Reason.CARD_UNHEALTHY)
