"""Pods of a real cluster are placed where the simulator has placed them."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpusharectl.app import cli
from localcluster.demo import HALF, QUARTER, THREE_QUARTERS
from localcluster.gpushare import CARD_MIB, Gpushare
from localcluster.workloads import Workloads, pod

pytestmark = pytest.mark.cluster


def test_pods_go_where_the_simulator_said(gpushare: Gpushare, pods: Workloads, tmp_path: Path):
    pods.run(
        pod("here-half", HALF, node="n1"),
        pod("here-quarter", QUARTER, node="n2"),
        pod("here-full", CARD_MIB, node="n3"),
    )
    asked = [("new-half", HALF), ("new-large", THREE_QUARTERS), ("new-full", CARD_MIB)]
    described = [pod(name, units) for name, units in asked]
    snapshot, new = tmp_path / "cluster.json", tmp_path / "new.json"
    snapshot.write_text(gpushare.cluster.kubectl("get", "nodes,pods", "-A", "-o", "json"))
    listed = [{**each, "at": number} for number, each in enumerate(described)]
    new.write_text(json.dumps({"kind": "List", "items": listed}))
    said = CliRunner().invoke(cli, ["simulate", str(snapshot), str(new), "--last", "-o", "json"])
    assert said.exit_code == 0, said.output
    places = {
        held["name"]: (node["name"], card["index"])
        for node in json.loads(said.output)["steps"][0]["nodes"]
        for card in node["cards"]
        for held in card["pods"]
    }
    for each in described:
        pods.run(each)
    names = ["here-half", "here-quarter", "here-full", *(name for name, _ in asked)]
    assert {name: gpushare.card_of(name) for name in names} == places
