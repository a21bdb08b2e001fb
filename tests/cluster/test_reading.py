"""The API server decides by a caller's token what the caller may read."""

from collections.abc import AsyncIterator
from functools import partial

import pytest

from extender.server.authorization import Authorizer, Denied, Question
from gpushare.clock import SystemClock
from gpushare.kube.client import Kube
from localcluster.gpushare import NAMESPACE, Gpushare
from localcluster.wait import wait_until
from tests.cluster.command_line import why_not

pytestmark = pytest.mark.cluster

EVERYTHING = Question("list")


@pytest.fixture
async def authorizer(gpushare: Gpushare) -> AsyncIterator[Authorizer]:
    """Ask with the extender's own rights."""
    kubeconfig = gpushare.cluster.service_account_kubeconfig(NAMESPACE, "gpushare-extender")
    async with Kube.connect(str(kubeconfig)) as kube:
        yield Authorizer(kube, SystemClock())


def token_of(gpushare: Gpushare, account: str, namespace: str = NAMESPACE) -> str:
    kubeconfig = gpushare.cluster.service_account_kubeconfig(namespace, account)
    return kubeconfig.with_suffix(".token").read_text()


async def refused(authorizer: Authorizer, token: str, question: Question) -> int:
    with pytest.raises(Denied) as denied:
        await authorizer.check(token, question)
    return denied.value.status


async def test_a_right_to_list_pods_shows_their_cards(gpushare: Gpushare, authorizer: Authorizer):
    extender = token_of(gpushare, "gpushare-extender")
    await authorizer.check(extender, EVERYTHING)
    await authorizer.check(extender, Question("get", "default", "any"))
    assert await refused(authorizer, extender, Question(path="/metrics")) == 403


async def test_a_right_in_a_namespace_shows_only_that(gpushare: Gpushare, authorizer: Authorizer):
    nobody = token_of(gpushare, "default", "default")
    own = Question("get", "default", "any")
    assert await refused(authorizer, nobody, EVERYTHING) == 403
    gpushare.cluster.kubectl(
        "create", "rolebinding", "reads", "--clusterrole=view", "--serviceaccount=default:default"
    )
    try:
        lacks = partial(why_not, gpushare.cluster, "default:default", "get", "pods", "default")
        wait_until("the right to get pods", lacks, seconds=30)
        await authorizer.check(nobody, own)
        assert await refused(authorizer, nobody, EVERYTHING) == 403
        assert await refused(authorizer, nobody, Question("get", "kube-system", "any")) == 403
    finally:
        gpushare.cluster.kubectl("delete", "rolebinding", "reads")


@pytest.mark.parametrize("token", ["rubbish", "a.b.c", "\u00fc"])
async def test_a_token_unknown_to_the_api_server_reads_nothing(authorizer: Authorizer, token: str):
    assert await refused(authorizer, token, EVERYTHING) == 401
