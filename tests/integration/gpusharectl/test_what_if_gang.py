"""``gpushare what-if`` about the pods of a gang."""

import asyncio

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from click.testing import CliRunner

from gpushare.contract import ANNOTATION_CARDS
from gpusharectl.app import cli
from tests.builders import node, pod
from tests.integration.kube.apiserver import write_kubeconfig
from tests.markdown import ROOT

pytestmark = pytest.mark.integration

SAMPLES = ROOT / "daemonset" / "samples"
ZONE = "topology.kubernetes.io/zone"


def zoned(name, zone, *cards):
    found = msgspec.to_builtins(node(name, *cards, unit_mib=1024))
    found["metadata"]["labels"] = {ZONE: zone}
    found["status"]["allocatable"] |= {"cpu": "64", "memory": "256Gi"}
    return found


async def what_if(tmp_path, *words, nodes=(), pods=(), server=""):
    """Run it with an API server that has these objects; without an extender if not ``server``."""
    listed = {"nodes": list(nodes), "pods": [msgspec.to_builtins(each) for each in pods]}

    async def answer(request):
        items = listed.get(request.path.rpartition("/")[2], [])
        return web.json_response({"items": items, "metadata": {}})

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    async with TestServer(app) as api:
        path = write_kubeconfig(tmp_path, str(api.make_url("")))
        words = ["--kubeconfig", path, "what-if", *words]
        env = {"GPUSHARE_SERVER": server}
        return await asyncio.to_thread(CliRunner().invoke, cli, words, env=env)


async def test_a_trainer_with_a_server_is_checked_as_a_whole(tmp_path):
    file = str(SAMPLES / "gang-trainer.yaml")
    nodes = [zoned("n1", "a", 16), zoned("n2", "b", 16, 16)]
    found = await what_if(tmp_path, "-f", file, nodes=nodes)
    lines = found.output.splitlines()
    assert found.exit_code == 0
    assert lines[0] == "Service gang-trainer-server creates no pods and is ignored"
    assert lines[1:4] == [
        "gang gang-trainer (Job gang-trainer-server; Job gang-trainer-worker, 3 times):",
        "fits as a whole: yes, in zone b",
        "All 4 would start in zone b.",
    ]
    assert "  n2: 1" in lines
    assert any(line.startswith("computed from the API server's lists only") for line in lines)


async def test_a_gang_that_does_not_fit_ends_with_1_and_says_what_fits(tmp_path):
    file = str(SAMPLES / "gang-trainer.yaml")
    found = await what_if(tmp_path, "-f", file, nodes=[zoned("n1", "a", 16), zoned("n2", "b", 16)])
    assert found.exit_code == 1
    assert "fits as a whole: no\n" in found.output
    assert "No zone has room for 3 x 8 GiB and 1 pod without GPU memory: zone" in found.output


async def test_what_would_be_evicted_is_shown_with_the_places_after_that(tmp_path):
    low = pod("low", 16, node="n1", annotations={ANNOTATION_CARDS: "GPU-1"})
    low = msgspec.structs.replace(low, spec=msgspec.structs.replace(low.spec, priority=-1))
    words = ("-f", str(SAMPLES / "gang-job.yaml"), "--evict")
    found = await what_if(tmp_path, *words, nodes=[zoned("n1", "a", 16, 16)], pods=[low])
    assert found.exit_code == 1
    lines = found.output.splitlines()
    at = lines.index("evicting 1 pod of lower priority would make room:")
    assert lines[at + 1] == "  n1  default/low  16 GiB, priority -1"
    assert lines[at + 2 : at + 5] == ["places after that:", "  n1, GPU 0: 2", "  n1, GPU 1: 2"]
    assert "  PodDisruptionBudgets of the pods to evict" in lines
    assert "  PodGroups of the pods to evict" in lines


async def test_programs_get_the_outlook_of_the_gang(tmp_path):
    words = ("-f", str(SAMPLES / "gang-job.yaml"), "-o", "json", "--count", "5")
    found = await what_if(tmp_path, *words, nodes=[zoned("n1", "a", 16, 16, 16)])
    document = msgspec.json.decode(found.output)
    assert (document["fits"], document["asked"], document["fitting"]) == (True, 5, 5)
    assert (document["gang"]["minimum"], document["gang"]["name"]) == (4, "gang-job")


async def test_an_extender_of_an_older_version_is_no_obstacle(tmp_path):
    async def unknown(request):
        status = 200 if request.path == "/readyz" else 404
        return web.json_response({"Error": "Not Found"}, status=status)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", unknown)
    async with TestServer(app) as extender:
        found = await what_if(
            tmp_path,
            *("-f", str(SAMPLES / "gang-job.yaml")),
            nodes=[zoned("n1", "a", 16, 16)],
            server=str(extender.make_url("")),
        )
    assert found.exit_code == 0
    assert "fits as a whole: yes" in found.output


async def test_pods_that_are_not_one_gang_are_checked_separately(tmp_path):
    file = tmp_path / "two.yaml"
    file.write_bytes(
        b"---\n".join((SAMPLES / f"gang-{n}.yaml").read_bytes() for n in ("job", "trainer"))
    )
    found = await what_if(tmp_path, "-f", str(file))
    assert found.exit_code == 2
    assert (
        "or only pods of one gang, and has: Job gang-job, Job gang-trainer-server" in found.output
    )


async def test_a_count_for_several_workloads_is_refused(tmp_path):
    found = await what_if(tmp_path, "-f", str(SAMPLES / "gang-trainer.yaml"), "--count", "3")
    assert found.exit_code == 2
    assert "--count is for one workload, and the file has several" in found.output
