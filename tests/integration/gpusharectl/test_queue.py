"""``gpushare queue`` and ``gpushare quota`` against an extender, and without one."""

import unicodedata

import msgspec
import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer

from gpushare.answers.queue.entries import QueueList
from gpushare.answers.queue.quotas import QuotaList, QuotaView
from tests.builders import node
from tests.integration.gpusharectl.test_gangs import ApiServer, pod, run
from tests.unit.gpusharectl.queue.test_lines import entry

pytestmark = pytest.mark.integration

QUEUE = QueueList([entry()], 7, order="fair")
QUOTAS = QuotaList([QuotaView("ml", True, 60, 64, {}, 3, 24)], unit_mib=1024)


@pytest.fixture
async def extender():
    """Has a queue, and records in ``asked`` what it is asked for."""
    app, asked = web.Application(), []

    async def answer(request):
        asked.append(request.path.removeprefix("/gpushare-scheduler/"))
        found = QUEUE if "/queue" in request.path else QUOTAS
        return web.Response(body=msgspec.json.encode(found), content_type="application/json")

    app.router.add_get("/{path:.*}", answer)
    server = TestServer(app)
    server.asked = asked
    return server


@pytest.mark.parametrize("command", ["queue", "quota"])
@pytest.mark.parametrize(("words", "page"), [((), "/mine"), (("-n", "ml"), "/ml"), (("-A",), "")])
async def test_the_namespace_of_the_context_is_shown_unless_another_is_asked_for(
    tmp_path, extender, command, words, page
):
    found = await run(tmp_path, ApiServer(), *words, extender=extender, command=(command,))
    said = {"queue": "12m      NoRoom", "quota": "60 GiB  64 GiB"}[command]
    assert (found.exit_code, said in found.output) == (0, True)
    assert extender.asked[-1] == f"{command}{page}"


@pytest.mark.parametrize(("command", "all_of_it"), [("queue", QUEUE), ("quota", QUOTAS)])
async def test_programs_get_the_extenders_answer(tmp_path, extender, command, all_of_it):
    words = ("-o", "json")
    found = await run(tmp_path, ApiServer(), *words, extender=extender, command=(command,))
    assert msgspec.json.decode(found.output) == msgspec.to_builtins(all_of_it)


@pytest.mark.parametrize("form", ["text", "wide", "json", "yaml"])
async def test_what_others_wrote_commands_no_terminal(tmp_path, extender, monkeypatch, form):
    hostile = "\x00\x1b[2J\x7f\x80\x85\x9b31m\xad\u200f\u2028\u2029\u202e\ufeff\U000e0001 显卡"
    monkeypatch.setitem(globals(), "QUEUE", QueueList([entry(waits_for=hostile)], 7, order="fair"))
    words = ("-o", form)
    found = await run(tmp_path, ApiServer(), *words, extender=extender, command=("queue",))
    kinds = {unicodedata.category(each) for each in found.output.replace("\n", "")}
    assert kinds.isdisjoint({"Cc", "Cf", "Zl", "Zp"})
    if form in {"json", "yaml"}:
        load = {"json": msgspec.json.decode, "yaml": yaml.safe_load}[form]
        assert load(found.output)["entries"][0]["waitsFor"] == hostile
    if form != "yaml":  # there other signs are escaped too
        assert "显卡" in found.output


@pytest.mark.parametrize("command", ["queue", "quota"])
async def test_without_an_extender_the_error_says_why_none_can_be_asked(tmp_path, command):
    found = await run(tmp_path, ApiServer(), command=(command,))
    assert found.exit_code == 3
    assert found.output == (
        "Error: you lack the right to list pods in namespace gpushare-system. "
        "Your administrator can give you the address for GPUSHARE_SERVER.\n"
    )


async def test_an_extender_of_an_earlier_version_is_said_to_be_one(tmp_path):
    async def unknown(_):
        return web.json_response({"Error": "Not Found"}, status=404)

    async def ready(_):
        return web.Response()

    app = web.Application()
    app.router.add_get("/readyz", ready)
    app.router.add_get("/{path:.*}", unknown)
    found = await run(tmp_path, ApiServer(), extender=TestServer(app), command=("queue",))
    assert found.exit_code == 3
    assert "the extender is of an earlier version" in found.output


async def test_inspect_says_that_a_pod_is_over_the_quota_which_the_extender_reports(
    tmp_path, extender
):
    waiting = pod("p", units="8")
    waiting["metadata"]["namespace"] = "ml"
    api = ApiServer(waiting, nodes=[msgspec.to_builtins(node("n", 40, unit_mib=1024))])
    api.all_pods = True
    found = await run(tmp_path, api, command=("inspect",), extender=extender)
    over = "namespace ml uses 60 GiB of its quota of 64 GiB, and the pod requests 8 GiB"
    assert over in found.output
