"""``gpushare what-if --policy``, which asks the API server only."""

import msgspec
import pytest

from gpushare.contract import ANNOTATION_CARDS
from tests.builders import pod
from tests.integration.gpusharectl.test_what_if_gang import SAMPLES, what_if, zoned

pytestmark = pytest.mark.integration

BOTH = ("--policy", "binpack", "--policy", "spread")


@pytest.fixture
def asks(tmp_path):
    path = tmp_path / "pod.json"
    path.write_bytes(msgspec.json.encode({"kind": "Pod", **msgspec.to_builtins(pod("asks", 4))}))
    return str(path)


async def test_policies_are_compared_on_the_pods_of_the_cluster(tmp_path, asks):
    nodes = [zoned("n1", "a", 16), zoned("n2", "b", 16)]
    there = pod("whisper-0", 4, node="n1", annotations={ANNOTATION_CARDS: "GPU-0"})
    words = ("-f", asks, "--count", "2", *BOTH)
    found = await what_if(tmp_path, *words, "-o", "json", nodes=nodes, pods=[there])
    assert found.exit_code == 0, found.output
    document = msgspec.json.decode(found.output)
    assert [kind["name"] for kind in document["kinds"]] == ["whisper"]
    places = [[place["node"] for place in each["places"]] for each in document["policies"]]
    assert places == [["n1"], ["n2", "n1"]]
    assert [each["left"]["freeGPUs"] for each in document["policies"]] == [1, 0]
    shown = await what_if(tmp_path, *words, nodes=nodes, pods=[there])
    assert shown.output.startswith("Pod asks, 2 times:\n"), shown.output
    assert "pods that fit" in shown.output


async def test_pods_that_do_not_all_fit_end_with_1(tmp_path, asks):
    words = ("-f", asks, "--count", "9", *BOTH)
    found = await what_if(tmp_path, *words, nodes=[zoned("n1", "a", 16)])
    assert found.exit_code == 1
    assert "pods that fit        4 of 9  4 of 9\n" in found.output


async def test_what_is_not_compared_is_refused(tmp_path, asks):
    found = await what_if(tmp_path, "-f", str(SAMPLES / "gang-job.yaml"), *BOTH)
    assert (found.exit_code, "--policy is for pods that are in no gang" in found.output) == (
        2,
        True,
    )
    found = await what_if(tmp_path, "-f", asks, *BOTH, "--evict")
    assert (found.exit_code, "use only one of them" in found.output) == (2, True)
