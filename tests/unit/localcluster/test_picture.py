"""The picture shows every card to scale, its shares, and what is unknown."""

from localcluster.picture import WIDTH, draw


def card(total, *pods, health="healthy"):
    held = [{"name": name, "usedGPU": units} for name, units in pods]
    used = sum(units for _, units in pods)
    return {"id": 0, "totalGPU": total, "free": total - used, "health": health, "pods": held}


def node(*cards, unplaced=(), problem=""):
    return {
        "name": "n1",
        "usedGPU": 1,
        "totalGPU": 2,
        "devs": cards,
        "unplaced": unplaced,
        "problem": problem,
    }


def bar(text):
    return text.split("▕")[1].split("▏")[0]


def test_a_bar_is_as_full_as_its_card():
    shown = bar(draw([node(card(16, ("a", 4), ("b", 8)))], new="b"))
    assert shown == "▓" * (WIDTH // 4) + "█" * (WIDTH // 2) + "·" * (WIDTH // 4)


def test_a_small_share_is_seen_and_no_bar_is_too_long():
    assert bar(draw([node(card(16276, ("a", 1)))])).startswith("▓·")
    assert len(bar(draw([node(card(10, ("a", 30)))]))) == WIDTH


def test_trouble_is_named():
    odd = {"name": "odd", "units": 4, "why": "no decision", "onEveryGPU": True}
    shown = draw([node(card(16, health="unhealthy"), unplaced=[odd], problem="unreadable")])
    assert "unhealthy" in shown
    assert "odd 4: no decision" in shown
    assert "unreadable" in shown
    assert bar(shown).startswith("?" * (WIDTH // 4) + "·")
    assert draw([]) == ""
