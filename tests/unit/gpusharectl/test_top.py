"""Who uses more than it asked for comes first; what is not known is not taken for nothing."""

from rich.console import Console

from gpusharectl import top
from gpusharectl.reach.samples import Samples
from tests.builders import node


def line(kind: str, pod: str, container: str, value: int) -> str:
    labels = f'namespace="default",pod="{pod}",container="{container}",card="0",uuid="GPU-0"'
    return f"gpushare_deviceplugin_pod_{kind}{{{labels}}} {value}.0"


def page(*pods: tuple[str, int | None, int], others: str = "", more: tuple[str, ...] = ()):
    """A plugin's page: pod, used and asked of its container ``main``; ``more`` are lines."""
    lines = [*more]
    for name, used, asked in pods:
        lines.append(line("asked_mib", name, "main", asked))
        if used is not None:
            lines.append(line("used_mib", name, "main", used))
    return Samples("\n".join(lines) + f"\n{others}\n")


def other(by: str, mib: int) -> str:
    labels = f'{{card="0",uuid="GPU-0",by="{by}"}}'
    return f"gpushare_deviceplugin_others_used_mib{labels} {mib}\n"


def test_the_worst_comes_first_and_then_who_uses_most():
    rows = top.pod_rows(
        {
            "n1": page(("modest", 10, 100), ("busy", 90, 100), ("silent", None, 100)),
            "n2": page(("greedy", 130, 100), ("over", 110, 100)),
        }
    )
    assert [row.pod for row in rows] == ["greedy", "over", "busy", "modest", "silent"]
    assert [row.over_mib for row in rows] == [30, 10, 0, 0, 0]
    assert rows[-1].used_mib is None


def only(*pods, more: tuple[str, ...]) -> top.PodRow:
    (row,) = top.pod_rows({"n1": page(*pods, more=more)})
    return row


def test_the_containers_of_a_pod_are_added_up():
    kinds = {"asked_mib": 100, "used_mib": 30, "limit_mib": 110, "sm_percent": 20}
    more = tuple(line(kind, "a", "helper", value) for kind, value in kinds.items())
    more += (line("limit_mib", "a", "main", 50), line("sm_percent", "a", "main", 5))
    row = only(("a", 10, 40), more=more)
    assert (row.used_mib, row.asked_mib, row.limit_mib, row.sm_percent) == (40, 140, 160, 25)


def test_a_pod_of_which_one_container_is_not_known_has_no_sum_of_memory():
    helper = line("asked_mib", "a", "helper", 100), line("sm_percent", "a", "helper", 5)
    row = only(("a", 10, 40), more=(*helper, line("limit_mib", "a", "main", 50)))
    assert (row.used_mib, row.asked_mib, row.limit_mib, row.sm_percent) == (None, 140, None, 5)


def test_what_a_pod_has_outside_of_its_containers_needs_no_limit():
    rest = line("asked_mib", "a", "", 60), line("used_mib", "a", "", 0)
    row = only(("a", 10, 40), more=(*rest, line("limit_mib", "a", "main", 50)))
    assert (row.used_mib, row.asked_mib, row.limit_mib) == (10, 100, 50)


def test_a_card_has_what_its_pods_and_others_use():
    measured = page(("a", 10, 4), ("b", 1, 4), others=other("host", 300) + other("unknown", 0))
    (first, second) = top.card_rows({"n1": measured}, [node("n1", 8, 8), node("n2", 8)])
    assert (first.pods_used_mib, first.pods_asked_mib, first.over_mib) == (11, 8, 3)
    others = (first.host_used_mib, first.ended_pods_used_mib, first.unknown_used_mib)
    assert others == (300, None, 0)
    assert (second.card, second.pods_used_mib) == ("1", 0)


def test_a_card_of_which_one_pod_is_not_told_has_no_sum():
    (row,) = top.card_rows({"n1": page(("a", 10, 4), ("b", None, 4))}, [node("n1", 8)])
    assert row.pods_used_mib is None
    assert row.pods_asked_mib == 8


def test_a_plugin_that_does_not_measure_is_told_from_one_without_pods():
    assert not top.is_measured(Samples("gpushare_deviceplugin_registered 1\n"))
    assert top.is_measured(Samples(other("host", 0)))


def test_nodes_that_are_not_measured_are_named_with_the_reason(capsys):
    without = (top.Unmeasured("n1", "off"), top.Unmeasured("n2", "off"), top.Unmeasured("n3", "-"))
    console = Console(width=80)
    top.show([], top.Measured({"n4": Samples()}, without), console)
    said = capsys.readouterr().out
    assert "No pod uses a share" in said
    assert "Not measured on n1, n2: off." in said


def test_amounts_are_in_gib_and_more_than_requested_is_seen_without_color(capsys):
    more = line("limit_mib", "greedy", "main", 12288), line("sm_percent", "greedy", "main", 42)
    pages = {"n1": page(("greedy", 13000, 10240), ("silent", None, 512), more=more)}
    measured = top.Measured(pages, ())
    top.show(top.pod_rows(pages), measured, Console(width=100, no_color=True))
    rows = [line.split("  ") for line in capsys.readouterr().out.splitlines() if "default/" in line]
    words = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    assert [row[3:] for row in words] == [
        ["12.7 GiB", "10 GiB", "2.7 GiB", "12 GiB", "42 %"],
        ["not known", "512 MiB", "-", "-"],
    ]
    top.show(top.card_rows(pages, [node("n1", 16276)]), measured, Console(width=120))
    assert "10.5 GiB" in capsys.readouterr().out, "requested"
