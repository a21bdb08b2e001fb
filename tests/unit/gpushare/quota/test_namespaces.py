"""What namespaces say, and the version by which others notice that one says another thing."""

import msgspec
import pytest

from gpushare.contract import ANNOTATION_QUOTA, LABEL_QUEUE
from gpushare.quota.namespaces import Namespace, NamespaceObject, Namespaces, namespace_of
from gpushare.quota.quota import Quota


def said(quota=None, *, queue=None, deleted=None, name="a"):
    """A namespace as the API server sends it."""
    meta = {"name": name, "deletionTimestamp": deleted}
    meta["annotations"] = None if quota is None else {ANNOTATION_QUOTA: quota}
    meta["labels"] = None if queue is None else {LABEL_QUEUE: queue}
    found = msgspec.json.decode(msgspec.json.encode({"metadata": meta}), type=NamespaceObject)
    return namespace_of(found)


def test_a_namespace_says_whether_it_is_queued_and_what_it_may_use():
    assert said("64,T4=8", queue="true") == Namespace("a", True, Quota(64, {"T4": 8}))
    assert said() == Namespace("a")


@pytest.mark.parametrize("value", ["false", "True", ""])
def test_another_value_of_the_label_is_no_queue(value):
    assert not said(queue=value).is_queued


def test_a_quota_that_cannot_be_read_is_a_problem_and_no_quota():
    found = said("lots")
    assert found.quota is None
    assert "'lots' is not a whole number" in found.problem


def test_a_namespace_that_is_being_deleted_says_so():
    assert said(deleted="2026-01-01T00:00:00Z").is_ending


def test_the_version_increases_exactly_when_a_namespace_says_another_thing():
    known, versions = Namespaces(), []
    for each in (said("8"), said("8"), said("9"), said("9", queue="true"), said(), said()):
        known.put(each)
        versions.append(known.version)
    assert versions == [1, 1, 2, 3, 4, 4]
    assert list(known) == []


def test_a_list_drops_all_namespaces_that_are_not_in_it():
    known = Namespaces()
    known.put(said("8"))
    known.put(said("9", name="b"))
    known.keep_only({"b"})
    assert known.get("a") == Namespace("a")
    assert known.get("b").quota == Quota(9)


def test_once_they_are_listed_again_it_is_forgotten_that_they_could_not_be_read():
    known = Namespaces()
    known.put(said("8"))
    known.why_unknown = "forbidden"
    known.keep_only({"a"})
    assert known.why_unknown == ""
    assert known.get("a").quota == Quota(8)
