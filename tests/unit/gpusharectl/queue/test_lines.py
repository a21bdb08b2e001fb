"""What people read of the queue and of quotas."""

from gpushare.answers.queue.entries import QueueEntry, QueueList
from gpushare.answers.queue.quotas import ModelQuota, QuotaList, QuotaView
from gpusharectl.queue.lines import Queue
from gpusharectl.queue.lines import draw as draw_queue
from gpusharectl.quota.lines import Quotas
from gpusharectl.quota.lines import draw as draw_quotas


def entry(name: str = "p", place: int = 1, **more) -> QueueEntry:
    fields = {
        "namespace": "ml",
        "kind": "Pod",
        "pods": 1,
        "units": 8,
        "priority": 0,
        "since": "2026-01-01T00:00:00Z",
        "waiting_seconds": 720.0,
        "reason": "NoRoom",
        "waits_for": "Requests 8 GiB on one GPU.",
        **more,
    }
    return QueueEntry(name=name, place=place, **fields)


THEIRS = entry("big", 0, kind="Gang", pods=4, reason="OtherGate", waits_for="It gets a position.")


def queue(*entries: QueueEntry, namespace="ml", is_wide=False, length=7, left_out=0) -> list[str]:
    found = Queue(QueueList(list(entries), length, left_out, unit_mib=1024), namespace)
    return [line.plain for line in draw_queue(found, is_wide=is_wide)]


def test_each_entry_is_a_row_with_what_it_waits_for() -> None:
    assert queue(entry(), THEIRS) == [
        "POSITION  NAME  WAITING  REASON     WAITS FOR",
        "       1  p     12m      NoRoom     Requests 8 GiB on one GPU.",
        "       -  big   12m      OtherGate  It gets a position.",
        "The queue of all namespaces has 7 positions.",
    ]


def test_all_namespaces_and_wide_add_columns() -> None:
    heads, row = queue(entry(), namespace="", is_wide=True)
    assert heads.split() == [
        *("POSITION", "NAMESPACE", "NAME", "KIND", "PODS", "REQUESTED", "PRIORITY", "WAITING"),
        *("REASON", "WAITS", "FOR"),
    ]
    assert row.split()[:8] == ["1", "ml", "p", "Pod", "1", "8", "GiB", "0"]
    unreadable = queue(entry(units=0), is_wide=True)[1]
    assert unreadable.split()[:6] == ["1", "p", "Pod", "1", "-", "0"]


def test_an_empty_queue_is_said_to_be_empty() -> None:
    why = "in the queue; `gpushare explain pod NAME` says why another is Pending"
    assert queue(length=0) == [f"namespace ml has no pod {why}"]
    assert queue(length=0, namespace="") == [f"there is no pod {why}"]


def test_what_is_left_out_is_counted() -> None:
    assert queue(entry(), namespace="", left_out=3)[-1] == "and 3 more (-n shows one namespace)"


def test_a_reason_of_a_newer_extender_is_shown_as_it_is() -> None:
    assert "Dreaming" in queue(entry(reason="Dreaming"))[1]


def quotas(*shown: QuotaView, **more) -> list[str]:
    found = Quotas(QuotaList(list(shown), **{"unit_mib": 1024, **more}), "ml")
    return [line.plain.rstrip() for line in draw_quotas(found)]


def test_each_namespace_is_a_row_and_each_limited_model_one_more() -> None:
    models = {"Tesla T4": ModelQuota(6, 8)}
    assert quotas(QuotaView("ml", True, 60, 64, models, 3, 24)) == [
        "NAMESPACE  MODEL       USED   LIMIT  WAITING PODS  REQUESTED  QUEUE  STATUS",
        "ml         (all)     60 GiB  64 GiB             3     24 GiB  yes",
        "           Tesla T4   6 GiB   8 GiB",
    ]


def test_amounts_are_gib_and_a_limit_has_the_number_that_is_written() -> None:
    models = {"T4": ModelQuota(6, 8)}
    assert quotas(QuotaView("ml", True, 147, 150, models, 1, 1), unit_mib=256)[1:] == [
        "ml         (all)  36.8 GiB  37.5 GiB (150)             1    256 MiB  yes",
        "           T4      1.5 GiB       2 GiB (8)",
    ]


def test_a_model_that_no_node_has_is_said_to_limit_nothing() -> None:
    models = {"all": ModelQuota(0, 8, exists=False)}
    *_, row = quotas(QuotaView("ml", True, 60, None, models, 0, 0))
    assert row.endswith("no node has this model: nothing is limited")


def test_a_namespace_without_a_limit_and_one_whose_quota_cannot_be_read_say_so() -> None:
    _, free, wrong = quotas(
        QuotaView("free", False, 6, None, {}, 0, 0),
        QuotaView("wrong", True, 0, None, {}, 2, 8, "'x' is not a whole number"),
    )
    assert free.split() == ["free", "(all)", "6", "GiB", "-", "0", "0", "GiB", "no"]
    assert wrong.endswith("nothing is placed: 'x' is not a whole number")


def test_without_any_quota_or_without_knowing_them_that_is_said() -> None:
    assert quotas() == ["no namespace has a quota or uses GPU memory"]
    assert quotas(problem="forbidden")[-1] == (
        "namespaces cannot be read, so quotas are as last read: forbidden"
    )
