"""A pod over the quota of its namespace waits, and is placed once it is within it."""

from collections.abc import Callable, Iterator

import pytest

from gpushare.quota.reasons import OVER_QUOTA
from localcluster.gpushare import Gpushare
from localcluster.wait import wait_until
from localcluster.workloads import Workloads, pod
from tests.cluster.expect import assigned, wait_event

pytestmark = pytest.mark.cluster


@pytest.fixture
def limit(gpushare: Gpushare) -> Iterator[Callable[[str], None]]:
    """Give a function that changes the quota of the namespace ``default``."""
    namespace = ("namespace", "default")

    def set_quota(quota: str) -> None:
        annotation = f"gpushare.aliyun.com/quota={quota}"
        gpushare.cluster.kubectl("annotate", "--overwrite", *namespace, annotation)

    yield set_quota
    gpushare.cluster.kubectl("annotate", *namespace, "gpushare.aliyun.com/quota-")


def await_explained(gpushare: Gpushare, name: str, text: str) -> None:
    """Wait until the extender gives this reason for a Pending pod."""

    def other() -> str | None:
        _, answer = gpushare.call("GET", f"/gpushare-scheduler/explain/default/{name}")
        return None if text in str(answer) else str(answer)[:2000]

    wait_until(f"explain to say {text!r}", other, seconds=30)


def test_a_pod_over_the_quota_waits_until_pods_end_or_the_quota_is_raised(
    gpushare: Gpushare, pods: Workloads, limit: Callable[[str], None]
):
    limit("100")
    pods.run(pod("first", 100))
    assigned(pods, "first")
    pods.create(pod("second", 100))
    wait_event(pods, "second", OVER_QUOTA.text)
    await_explained(gpushare, "second", "namespace default uses 100 MiB of its quota of 100 MiB")
    pods.delete("first")
    assigned(pods, "second")
    limit("200,none=1")
    pods.run(pod("third", 100))
    assigned(pods, "second", "third")
