"""Ask for room for the members of a gang that wait, around those that are bound (pure)."""

from gpushare.groups.group import Group
from gpushare.placement.trial import World
from gpushare.planning.ask import Ask


def ask_of(group: Group, world: World) -> Ask:
    """Return the question where the members have room that wait, around those that are bound."""
    waiting = tuple(pod for pod in group.present() if not pod.node)
    zone = zone_of(group, world) if group.zone_key else None
    least = group.minimum - group.bound
    return Ask(str(group.key), waiting, least, zone_key=group.zone_key, zone=zone)


def zone_of(group: Group, world: World) -> str | None:
    """Return the zone of the bound members; None if there are none."""
    nodes = (world.node(pod.node) for pod in group.present() if pod.node)
    zones = (node.labels.get(group.zone_key) for node in nodes if node is not None)
    return next((zone for zone in zones if zone), None)
