"""What inspect shows: by lists, with an extender's reserves, with what may not be seen."""

import io
import time

import msgspec
import pytest
from rich.console import Console

from gpushare.answers.inspect import view_node
from gpushare.contract import ANNOTATION_CARDS, ANNOTATION_INVENTORY
from gpushare.contract import ANNOTATION_CORDON_REASONS as REASONS
from gpushare.contract import ANNOTATION_CORDONED_CARDS as CORDONED
from gpushare.ledger.ledger import Ledger, Reserve
from gpushare.objects.model import NodeCondition
from gpusharectl.inspect import summary
from gpusharectl.inspect.lines import draw, fitted
from gpusharectl.terminal.output import document, show
from tests.builders import annotated, legacy_node, node, pod, stock

LARGEST = "the largest free part of one GPU is 16 (n1 GPU 1)"


def ready(found):
    status = msgspec.structs.replace(found.status, conditions=(NodeCondition("Ready", "True"),))
    return msgspec.structs.replace(found, status=status)


def on(name, units, where, card):
    return pod(name, units, node=where, annotations={ANNOTATION_CARDS: f"GPU-{card}"})


def text(found, **how):
    return "\n".join(line.plain for line in draw(found, **how))


def test_each_card_is_a_bar_of_its_shares_and_what_is_free():
    nodes = [ready(node("n1", 16, 16))]
    pods = [on("a", 8, "n1", 0), on("b", 4, "n1", 0), pod("waits", 3)]
    assert text(summary.of_lists(nodes, pods, [])).splitlines() == [
        "n1  12 of 32 MiB used",
        "  0 ▕████████████████▓▓▓▓▓▓▓▓········▏  4 of 16 free",
        "  1 ▕································▏ 16 of 16 free",
        "1 node, 2 GPUs: 32 MiB, 12 used, 20 free",
        LARGEST,
        "1 Pending pod",
    ]
    detailed = text(summary.of_lists(nodes, pods, []), pods=True)
    assert "     █ default/a  8\n     ▓ default/b  4\n" in detailed
    assert "GPU-1" in text(summary.of_lists(nodes, pods, []), wide=True)


def test_why_a_card_is_cordoned_stands_on_its_nodes_line_in_plain_signs():
    why = '{"GPU-0": "fan \\u001b[2J\\n broken", "GPU-1": "uncordoned since"}'
    kept = ready(annotated(node("kept", 16, 16), {CORDONED: "GPU-0", REASONS: why}))
    shown = text(summary.of_lists([kept], [], [])).splitlines()
    assert shown[0].endswith("used  GPU 0 is cordoned: fan [2J broken")
    lost = ready(annotated(node("kept", 16), {CORDONED: "GPU-0", REASONS: "{"}))
    assert text(summary.of_lists([lost], [], [])).splitlines()[0].endswith("16 MiB used")


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
    found = summary.of_lists(nodes, [pod("lost", 5, node="away")], [])
    shown = {line.partition("  ")[0]: line for line in text(found).splitlines()}
    assert "GPU-9" in shown["slip"]
    assert "cannot be read" in shown["broken"]
    assert "not ready" in shown["away"]
    assert "Aliyun gpushare" in shown["older"]
    assert "counts in GiB, the cluster in MiB" in shown["coarse"]
    cards = [line for line in text(found).splitlines() if "▕" in line]
    assert [line.rpartition("free")[2].strip() for line in cards].count("unhealthy") == 1
    assert [line.rpartition("free")[2].strip() for line in cards].count("cordoned") == 1
    assert "? default/lost 5" in text(found)
    # Free are only cards that take pods: the healthy one, away's less 5, older's two.
    assert found.summary.free == 16 + 11 + 30
    assert found.summary.largest_free.units == 16


def test_reserves_come_from_the_extender_and_their_absence_is_said():
    nodes, pods = [ready(node("n1", 16))], [on("a", 8, "n1", 0)]
    ledger = Ledger()
    ledger.set_inventory("n1", stock(16))
    ledger.reserve(Reserve("uid-b", "default", "b", "n1", ("GPU-0",), 6, 1))
    told = [view_node(ledger, "n1")]
    found = summary.of_lists(nodes, pods, told)
    [card] = found.nodes[0].devices
    assert (card.used, card.reserved, card.free) == (8, 6, 2)
    assert "▒ reserved" in text(found)
    without = summary.of_lists(nodes, pods, None, not_shown=["reservations are not shown: no way"])
    assert without.nodes[0].devices[0].free == 8
    assert text(without).endswith("reservations are not shown: no way")


def test_where_pods_may_not_be_seen_what_is_free_is_no_promise():
    found = summary.of_lists([ready(node("n1", 16))], [], None, complete=False)
    assert "at most 16 of 16 free" in text(found)
    assert found.summary.waiting is None


def test_where_nodes_may_not_be_seen_ones_own_pods_are():
    found = summary.of_lists([], [on("a", 8, "n1", 0)], None, complete=False, not_shown=["why"])
    assert text(found).splitlines() == ["default/a  8 of GPU-0 on n1", "why"]


def test_for_programs_amounts_are_numbers_and_nothing_is_missing():
    found = summary.of_lists([ready(node("n1", 16))], [on("a", 8, "n1", 0)], [])
    read = msgspec.json.decode(document(found, "json"))
    assert read["unitMiB"] == 1
    assert read["nodes"][0]["devs"][0]["free"] == 8
    assert read["summary"]["largestFree"] == {"units": 8, "node": "n1", "card": 0}
    assert msgspec.yaml.decode(document(found, "yaml")) == read


def printed(found, **terminal):
    file = io.StringIO()
    show(draw(found), Console(file=file, highlight=False, **terminal))
    return file.getvalue()


def test_a_pipe_gets_no_colour_and_whole_lines(monkeypatch):
    long = "n" + "x" * 200
    found = summary.of_lists([ready(node(long, 16))], [], [])
    assert "\x1b" not in printed(found)
    assert printed(found).startswith(f"{long}  0 of 16 MiB used\n")
    assert "\x1b[" in printed(found, force_terminal=True, color_system="standard")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in printed(found, force_terminal=True, color_system="standard")


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_bars_are_as_long_as_the_terminal_has_room_for(columns):
    found = summary.of_lists([ready(node("n1", 16276))], [], [])
    [bar] = [line.plain for line in draw(found, columns=columns) if "▕" in line.plain]
    assert len(bar) <= columns


def test_a_terminal_with_too_few_rows_shows_what_all_nodes_have_together():
    found = summary.of_lists([ready(node(f"n{i}", 16)) for i in range(9)], [], [])
    lines = list(draw(found))
    assert fitted(lines, found, 100) == lines
    shown = [line.plain for line in fitted(lines, found, 6)]
    assert len(shown) == 6
    assert shown[-3].startswith("... 15 more lines")
    assert shown[-2].startswith("9 nodes, 9 GPUs")


def test_a_large_cluster_is_drawn_at_once():
    nodes = [ready(node(f"n{i}", *[16] * 8)) for i in range(1000)]
    pods = [on(f"p{i}", 2, f"n{i % 1000}", i % 8) for i in range(8000)]
    began = time.process_time()
    shown = printed(summary.of_lists(nodes, pods, []), force_terminal=True, color_system="standard")
    assert shown.count("▕") == 8000
    assert time.process_time() - began < 10  # 1 s on a quiet machine
