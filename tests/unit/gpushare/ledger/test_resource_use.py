"""The sums of each node are those of its pods, whatever happened before."""

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gpushare.ledger.resource_use import ResourceUse

NODES = ("n0", "n1")
uids = st.sampled_from("abcd")
nodes = st.sampled_from(NODES)
amounts = st.dictionaries(st.sampled_from(["cpu", "memory", "vendor.com/nic"]), st.integers(0, 3))
requests = st.none() | amounts.map(lambda found: tuple(sorted(found.items())))


class Pods(RuleBasedStateMachine):
    """Pods come, change, move and go; one may come twice, and go without having come."""

    def __init__(self):
        super().__init__()
        self.use = ResourceUse()
        self.pods = {}
        self.before = {}
        self.seen = 0

    def changed(self):
        """Return the nodes whose sums differ from those after the last step."""
        now = {name: self.expected(name) for name in NODES}
        found = {name for name in NODES if now[name] != self.before.get(name, {})}
        self.before = now
        return found

    def expected(self, name):
        here = [requests for node, requests, _ in self.pods.values() if node == name]
        if None in here:
            return None
        sums = {}
        for each in here:
            for resource, amount in each:
                sums[resource] = sums.get(resource, 0) + amount
        return {resource: amount for resource, amount in sums.items() if amount}

    @rule(uid=uids, name=nodes, requests=requests, is_other=st.booleans())
    def put(self, uid, name, requests, is_other):
        self.use.put(uid, name, requests, is_other=is_other)
        self.pods[uid] = name, requests, is_other

    @rule(uid=uids)
    def remove(self, uid):
        self.use.remove(uid)
        self.pods.pop(uid, None)

    @invariant()
    def sums_are_those_of_the_pods(self):
        for name in NODES:
            assert self.use.used(name) == self.use.recounted(name) == self.expected(name)
        assert {uid: self.use.node_of(uid) for uid in "abcd" if self.use.node_of(uid)} == {
            uid: name for uid, (name, *_) in self.pods.items()
        }
        assert sorted(self.use.uids()) == sorted(self.pods)

    @invariant()
    def what_others_request_is_known(self):
        for name in NODES:
            here = [
                dict(requests or ())
                for node, requests, is_other in self.pods.values()
                if node == name and is_other
            ]
            sums = (sum(each.get(what, 0) for each in here) for what in ("cpu", "memory"))
            assert self.use.of_others(name) == tuple(sums)

    @invariant()
    def every_change_of_a_sum_is_recorded(self):
        recorded = set(self.use.changes.since(self.seen))
        self.seen = self.use.changes.now
        assert self.changed() <= recorded


TestPods = Pods.TestCase


@given(requests)
def test_a_pod_that_changes_nothing_changes_no_node(found):
    use = ResourceUse()
    use.put("a", "n", found)
    now = use.changes.now
    use.put("a", "n", found)
    use.remove("b")
    assert use.changes.now == now


def test_what_has_gone_leaves_nothing_behind():
    use = ResourceUse()
    for number in range(10):
        use.put(str(number), "n", (("cpu", number // 2),))
    for number in range(10):
        use.remove(str(number))
    assert not [name for name, kept in vars(use).items() if name != "changes" and kept]
