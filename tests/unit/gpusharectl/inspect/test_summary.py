"""What inspect shows of nodes: by lists, with an extender's reserves, with what may not be seen."""

import datetime as dt
import io
import time
from dataclasses import replace

import msgspec
import pytest
from rich.console import Console

from gpushare.annotations import inventory
from gpushare.answers.inspect import view_node
from gpushare.contract import ANNOTATION_CARDS, ANNOTATION_INVENTORY
from gpushare.contract import ANNOTATION_CORDON_REASONS as REASONS
from gpushare.contract import ANNOTATION_CORDONED_CARDS as CORDONED
from gpushare.ledger.accounts import Reserve
from gpushare.ledger.holds import Claim, Slot
from gpushare.ledger.ledger import Ledger
from gpushare.objects.model import NodeCondition, ObjectMeta
from gpusharectl.inspect import summary
from gpusharectl.inspect.lines import draw, fitted
from gpusharectl.inspect.summary import Listed
from gpusharectl.inspect.sums import below
from gpusharectl.reach.pod_events import Said
from gpusharectl.terminal.output import document, show
from tests.builders import annotated, legacy_node, node, pod, stock

NOW = dt.datetime(2026, 11, 23, 7, tzinfo=dt.UTC)


def ready(found):
    status = msgspec.structs.replace(found.status, conditions=(NodeCondition("Ready", "True"),))
    return msgspec.structs.replace(found, status=status)


def on(name, units, where, card):
    return pod(name, units, node=where, annotations={ANNOTATION_CARDS: f"GPU-{card}"})


def created(name, namespace, at):
    return ObjectMeta(name=name, namespace=namespace, uid=name, creation_timestamp=at)


def seen(nodes, pods, told=(), **more):
    return summary.of_lists(Listed(nodes, pods), told, **more)


def lines(found, **how):
    return [*draw(found, NOW, **how), *below(found, NOW)]


def text(found, **how):
    return "\n".join(line.plain for line in lines(found, **how))


def test_each_card_is_a_bar_of_its_shares_and_what_is_free():
    nodes = [ready(node("n1", 16276, 16276))]
    pods = [on("a", 8138, "n1", 0), on("b", 4069, "n1", 0)]
    assert text(seen(nodes, pods)).splitlines() == [
        "n1  11.9 GiB of 31.7 GiB used",
        "  0 ▕████████████████▓▓▓▓▓▓▓▓········▏  3.9 GiB of 15.8 GiB free",
        "  1 ▕································▏ 15.8 GiB of 15.8 GiB free",
        "1 node, 2 GPUs: 31.7 GiB, 11.9 GiB used, 19.8 GiB free",
        "the most free on one GPU is 15.8 GiB (n1, GPU 1)",
        "NAMESPACE      USED  SHARE  PODS  PENDING",
        "default    11.9 GiB    38%     2        0",
    ]
    detailed = text(seen(nodes, pods), pods=True)
    assert "     █ default/a  8 GiB\n     ▓ default/b  4 GiB\n" in detailed
    assert "GPU-1" in text(seen(nodes, pods), wide=True)


def enforcing(*whats, reserve=""):
    found = stock(*[16] * len(whats))
    cards = tuple(
        replace(card, enforces=what, why_not_more=why)
        for card, (what, why) in zip(found.cards, whats, strict=True)
    )
    found = replace(found, cards=cards, reserve=reserve)
    return ready(annotated(node("n1"), {ANNOTATION_INVENTORY: inventory.encode(found)}))


def test_the_wide_output_says_what_limits_memory_and_why_not_the_driver():
    old = ("framework", "driver 580.95 cannot limit memory")
    mixed = seen([enforcing(("driver", ""), old, old, reserve="3%")], [])
    assert text(mixed, wide=True).splitlines()[1:4] == [
        "  GPU 0: memory is limited by the driver",
        "  GPUs 1 and 2: memory is limited by frameworks: driver 580.95 cannot limit memory",
        "  3% of each GPU is reserved and not shared",
    ]
    off = seen([enforcing(("nothing", "--memory-limit=off is set"))], [])
    assert "  memory is not limited: --memory-limit=off is set" in text(off, wide=True)
    older = seen([enforcing(("", ""))], [])
    assert "limited" not in text(older, wide=True)
    assert "limited" not in text(mixed)


def test_a_gpu_that_is_gone_says_for_how_long_it_is_and_will_be_remembered():
    found = stock(16, 16, unhealthy=[1])
    gone = replace(found.cards[1], gone_since=int(NOW.timestamp()) - 7200)
    written = inventory.encode(replace(found, cards=(found.cards[0], gone)))
    shown = text(seen([annotated(ready(node("n", 16, 16)), {ANNOTATION_INVENTORY: written})], []))
    assert shown.count("unhealthy  gone for 2h, forgotten in 2d if unused") == 1


def test_where_no_node_shares_gpus_inspect_names_the_next_command():
    shown = text(seen([], [pod("p", 1)]))
    assert shown.startswith("no node shares GPUs by memory: `gpushare doctor` says what is missing")
    assert "0 GPUs" not in shown
    assert "1 Pending pod" in shown


def test_why_a_card_is_cordoned_stands_on_its_nodes_line_in_plain_signs():
    why = '{"GPU-0": "fan \\u001b[2J\\n broken", "GPU-1": "uncordoned since"}'
    kept = ready(annotated(node("kept", 16, 16), {CORDONED: "GPU-0", REASONS: why}))
    shown = text(seen([kept], [])).splitlines()
    assert shown[0].endswith("used  GPU 0 is cordoned: fan [2J broken")
    lost = ready(annotated(node("kept", 16), {CORDONED: "GPU-0", REASONS: "{"}))
    assert text(seen([lost], [])).splitlines()[0].endswith("16 MiB used")


def test_what_is_wrong_with_a_card_or_a_node_stands_beside_it():
    nodes = [
        ready(node("ill", 16, 16, unhealthy=[1])),
        ready(annotated(node("kept", 16), {CORDONED: "GPU-0"})),
        ready(annotated(node("slip", 16), {CORDONED: "GPU-9"})),
        ready(annotated(node("broken", 16), {ANNOTATION_INVENTORY: "{"})),
        node("away", 16),
        ready(legacy_node("older", "30", "2")),
        ready(node("coarse", 16, unit_mib=1024)),
    ]
    lost = pod("lost", 5, node="away", annotations={ANNOTATION_CARDS: "gone"})
    found = seen(nodes, [lost, pod("bare", 3, node="away")])
    shown = {line.partition("  ")[0]: line for line in text(found).splitlines()}
    assert "GPU-9" in shown["slip"]
    assert "cannot be read" in shown["broken"]
    assert "not ready" in shown["away"]
    assert "Aliyun gpushare" in shown["older"]
    assert "counts in units of 1024 MiB, the cluster in units of 1 MiB" in shown["coarse"]
    cards = [line for line in text(found).splitlines() if "▕" in line]
    assert [line.rpartition("free")[2].strip() for line in cards].count("unhealthy") == 1
    assert [line.rpartition("free")[2].strip() for line in cards].count("cordoned") == 1
    assert "? default/lost  5 MiB, on an unknown GPU" in text(found)
    assert "? default/bare  3 MiB, on no GPU: no decision" in text(found)
    # Free are only cards that take pods: the healthy one, away's less 5, older's two.
    assert found.summary.free == 16 + 11 + 30
    assert found.summary.largest_free.units == 16


def test_the_reason_of_a_pending_pod_counts_what_the_extender_has_reserved():
    nodes, waits = [ready(node("n1", 16, 16))], pod("waits", 8)
    ledger = Ledger()
    ledger.set_inventory("n1", stock(16, 16))
    for number in range(2):
        ledger.reserve(Reserve(f"uid-{number}", "x", "b", "n1", (f"GPU-{number}",), 10, 1))
    found = seen(nodes, [waits], [view_node(ledger, "n1")])
    assert "(n1, GPU 0) is reserved or claimed for pods before it" in found.waiting[0].why
    assert "It fits if it requests 6 MiB or less" in found.waiting[0].why


def test_reserves_come_from_the_extender_and_their_absence_is_said():
    nodes, pods = [ready(node("n1", 16))], [on("a", 8, "n1", 0)]
    ledger = Ledger()
    ledger.set_inventory("n1", stock(16))
    ledger.reserve(Reserve("uid-b", "default", "b", "n1", ("GPU-0",), 6, 1))
    told = [view_node(ledger, "n1")]
    found = seen(nodes, pods, told)
    [card] = found.nodes[0].devices
    assert (card.used, card.reserved, card.free) == (8, 6, 2)
    assert "▒ reserved" in text(found)
    without = seen(nodes, pods, None, not_shown=["reservations are not shown: no way"])
    assert without.nodes[0].devices[0].free == 8
    assert text(without).endswith("reservations are not shown: no way")


def test_what_is_claimed_is_not_free_and_is_shown_also_while_others_use_it():
    nodes, pods = [ready(node("n1", 16, 16))], [on("a", 12, "n1", 0), on("b", 16, "n1", 1)]
    ledger = Ledger()
    ledger.set_inventory("n1", stock(16, 16))
    slots = tuple(Slot("n1", (f"GPU-{card}",), 10) for card in range(2))
    ledger.keep(Claim("winner", slots, 1.0, 5))
    told = [view_node(ledger, "n1")]
    found = seen(nodes, [*pods, pod("waits", 4)], told)
    assert [(card.used, card.claimed, card.free) for card in found.nodes[0].devices] == [
        (12, 10, 0),
        (16, 10, 0),
    ]
    assert "(n1, GPU 0) is reserved or claimed for pods before it" in found.waiting[0].why
    shown = text(found).splitlines()
    assert shown[1] == "  0 ▕████████████████████████▚▚▚▚▚▚▚▚▏ 0 GiB of 16 MiB free  10 MiB claimed"
    assert shown[2] == "  1 ▕████████████████████████████████▏ 0 GiB of 16 MiB free  10 MiB claimed"
    assert "28 MiB used, 0 GiB free, 20 MiB claimed" in text(found)
    assert "▚ claimed for pods that wait until others have ended" in text(found)


def test_where_pods_may_not_be_seen_nothing_is_summed_and_what_is_free_is_no_promise():
    mine = Listed([ready(node("n1", 16))], [on("a", 8, "n1", 0)], "default", ("why",))
    found = summary.of_lists(mine, None)
    assert text(found).splitlines() == [
        "n1  at least 8 MiB of 16 MiB used",
        "  0 ▕████████████████················▏ at most 8 MiB of 16 MiB free",
        "why",
    ]
    assert (found.complete, found.summary, found.namespaces) == (False, None, None)


def test_where_nodes_may_not_be_seen_ones_own_pods_are_in_units_because_these_are_unknown():
    waits = msgspec.structs.replace(
        pod("b", 4), metadata=created("b", "ml", "2026-11-23T06:48:00Z")
    )
    mine = Listed(None, [on("a", 8, "n1", 0), waits], "default", ("why",))
    found = summary.of_lists(mine, None)
    assert text(found).splitlines() == [
        "default/a  8 units of GPU-0 on n1",
        "1 Pending pod",
        "  ml/b  12m  requests 4 units of GPU memory on one GPU; the nodes are not visible here.",
        "why",
    ]
    read = msgspec.json.decode(document(found, "json"))
    assert (read["unitMiB"], read["complete"], read["summary"]) == (None, False, None)


def test_where_nodes_may_not_be_seen_a_pods_event_says_why_it_is_pending():
    waits, too_large = pod("b", 4), pod("c", 9000)
    said = {
        waits.uid: Said("requests 4 MiB on one GPU; no GPU has free memory.", "2026-11-23T06:48Z")
    }
    found = summary.of_lists(Listed(None, [waits, too_large], "default", ("why",), said), None)
    assert [line.partition("  ")[2] for line in text(found).splitlines()[1:3]] == [
        "default/b  ?  requests 4 MiB on one GPU; no GPU has free memory. (12m ago)",
        f"default/c  ?  {found.waiting[1].why}",
    ]
    assert "the nodes are not visible here." in found.waiting[1].why
    read = msgspec.json.decode(document(found, "json"))["waiting"][0]
    assert (read["why"], read["saidAt"]) == tuple(said[waits.uid])


def test_for_programs_amounts_are_numbers_and_nothing_is_missing():
    found = seen([ready(node("n1", 16))], [on("a", 8, "n1", 0)])
    read = msgspec.json.decode(document(found, "json"))
    assert read["unitMiB"] == 1
    assert read["nodes"][0]["devs"][0]["free"] == 8
    assert read["summary"]["largestFree"] == {"units": 8, "node": "n1", "card": 0}
    assert msgspec.yaml.decode(document(found, "yaml")) == read


def printed(found, **terminal):
    file = io.StringIO()
    show(lines(found), Console(file=file, highlight=False, **terminal))
    return file.getvalue()


def test_a_pipe_gets_no_colour_and_whole_lines(monkeypatch):
    long = "n" + "x" * 200
    found = seen([ready(node(long, 16))], [])
    assert "\x1b" not in printed(found)
    assert printed(found).startswith(f"{long}  0 GiB of 16 MiB used\n")
    assert "\x1b[" in printed(found, force_terminal=True, color_system="standard")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in printed(found, force_terminal=True, color_system="standard")


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_bars_are_as_long_as_the_terminal_has_room_for(columns):
    found = seen([ready(node("n1", 16276))], [])
    [bar] = [line.plain for line in draw(found, NOW, columns=columns) if "▕" in line.plain]
    assert len(bar) <= columns


def test_a_terminal_with_too_few_rows_shows_what_all_nodes_have_together():
    waits = [pod(f"p{number:02}", 99) for number in range(40)]
    found = seen([ready(node(f"n{i}", 16)) for i in range(9)], waits)
    nodes, sums = list(draw(found, NOW)), list(below(found, NOW))
    assert fitted(nodes, sums, 100) == [*nodes, *sums]
    shown = [line.plain for line in fitted(nodes, sums, 12)]
    assert len(shown) == 12
    assert shown[3].startswith("... 15 more lines")
    assert shown[4].startswith("9 nodes, 9 GPUs")
    assert shown[-1].startswith("... ")
    assert all(len(fitted(nodes, sums, rows)) <= rows for rows in range(3, 50))


def test_a_large_cluster_is_drawn_at_once():
    nodes = [ready(node(f"n{i}", *[16] * 8)) for i in range(1000)]
    pods = [on(f"p{i}", 2, f"n{i % 1000}", i % 8) for i in range(8000)]
    began = time.process_time()
    shown = printed(seen(nodes, pods), force_terminal=True, color_system="standard")
    assert shown.count("▕") == 8000
    assert time.process_time() - began < 10  # 1 s on a quiet machine
