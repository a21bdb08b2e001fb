"""The command line for a user who may read one namespace only: it says what it can, and what to do.

The API server is a double; tests/cluster has a real one.
"""

import asyncio
import datetime as dt

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from click.testing import CliRunner

from gpusharectl.app import cli
from tests.integration.gpusharectl.test_gangs import pod
from tests.integration.gpusharectl.test_listing import configured

pytestmark = pytest.mark.integration

ASK = "are not shown. Your administrator can give you the address for GPUSHARE_SERVER.\n"


def waiting_since(seconds):
    at = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=seconds)
    text = "Pending: requests 5 GiB on one GPU; the most free on one GPU is 4 GiB."
    return {
        "reason": "GpushareWaiting",
        "message": text,
        "involvedObject": {"uid": "train"},
        "lastTimestamp": at.isoformat(),
    }


@pytest.fixture
async def asked(tmp_path):
    """Return the result of a command; the API server has one Pending pod and one Event (found)."""
    found = {"pods": [pod("train", units="5")], "events": [waiting_since(60)]}

    async def answer(request):
        _, _, page = request.path.partition("/api/v1/namespaces/mine/")
        if page == "pods/train":
            return web.json_response(found["pods"][0])
        if page in found:
            return web.json_response({"items": found[page], "metadata": {}})
        return web.json_response({"reason": "Forbidden"}, status=403)

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)

    async def ask(*words):
        words = [*words, "--kubeconfig", configured(server, tmp_path)]
        return await asyncio.to_thread(CliRunner().invoke, cli, words)

    ask.found = found
    async with TestServer(app) as server:
        yield ask


async def test_explain_gives_the_answer_its_age_and_one_sentence(asked):
    found = await asked("explain", "pod", "train")
    assert found.exit_code == 1  # the pod has no GPU
    assert found.output == (
        "mine/train is Pending: requests 5 GiB on one GPU; the most free on one GPU is 4 GiB. "
        f"(60s ago)\nNodes and free GPU memory {ASK}"
    )
    whole = (await asked("explain", "pod", "train", "--verbose")).output
    assert "(kubectl auth can-i list nodes; kubectl auth can-i list pods -A)" in whole
    assert ASK not in whole


async def test_inspect_of_the_namespace_succeeds(asked):
    found = await asked("inspect", "-n", "mine")
    assert (found.exit_code, found.output.count("\n")) == (0, 3)
    assert found.output.startswith("1 Pending pod\n  mine/train  ")
    hidden = f"Nodes, free GPU memory and pods of other namespaces {ASK}"
    assert found.output.endswith(f"is 4 GiB. (60s ago)\n{hidden}")
    assert (await asked("inspect")).exit_code == 3  # it asks for the whole cluster


async def test_programs_get_the_time_instead_of_an_age(asked):
    for words in (("inspect", "-n", "mine"), ("explain", "pod", "train")):
        found = msgspec.json.decode((await asked(*words, "-o", "json")).output)
        at = found["waiting"][0]["saidAt"] if "waiting" in found else found["saidAt"]
        assert dt.datetime.fromisoformat(at).tzinfo is not None
        assert " ago)" not in str(found)


@pytest.mark.parametrize(
    ("command", "begin", "end"),
    [
        ("top", "top reads from the nodes of the whole cluster", "administrator can give you."),
        ("doctor", "doctor checks the whole cluster", "use `gpushare explain pod NAME`."),
        ("page", "you lack the right", "can give you the address for GPUSHARE_SERVER."),
        ("queue", "you lack the right", "can give you the address for GPUSHARE_SERVER."),
        ("quota", "you lack the right", "can give you the address for GPUSHARE_SERVER."),
    ],
)
async def test_a_command_that_cannot_answer_says_what_to_do(asked, command, begin, end):
    found = await asked(command)
    assert found.exit_code == 3
    assert found.output.startswith(f"Error: {begin}")
    assert found.output.endswith(f"{end}\n")


async def test_what_if_names_the_command_that_answers(asked, tmp_path):
    manifest = tmp_path / "pod.json"
    manifest.write_bytes(msgspec.json.encode({"kind": "Pod", **pod("train", units="5")}))
    found = await asked("what-if", "-f", str(manifest))
    assert found.exit_code == 3
    assert found.output == (
        "Error: what-if looks at all nodes and pods, and you lack the right to list nodes and list "
        "pods in all namespaces. Create the pod: `gpushare explain pod NAME` says why it is "
        "Pending.\n"
    )


async def test_with_an_address_inspect_names_the_page_instead_of_asking_for_one(asked):
    async def answer(request):
        if request.path == "/readyz":
            return web.Response()
        return web.json_response({"Error": "jane may not list pods in all namespaces"}, status=403)

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    del asked.found["events"]
    async with TestServer(app) as server:
        found = await asked("inspect", "-n", "mine", "--server", str(server.make_url("")))
    assert found.exit_code == 0
    hidden, events = found.output.splitlines()[-2:]
    assert hidden.endswith("not shown: `gpushare page -n mine` shows what is free.")
    assert events.startswith("reasons in Events are not shown: ")
