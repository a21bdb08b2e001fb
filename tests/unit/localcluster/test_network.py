"""The addresses of a cluster."""

import ipaddress

import pytest

from localcluster.errors import HostError
from localcluster.network import NetworkPlan, choose, service_rules


def test_the_first_free_range_is_taken() -> None:
    taken = ["192.168.0.0/16", "10.200.3.0/24", "10.201.0.0/16", "10.202.9.9"]
    assert choose(taken).block == "10.203.0.0/16"


def test_a_default_route_takes_nothing() -> None:
    assert choose(["0.0.0.0/0"]).block == "10.200.0.0/16"


def test_no_free_range_is_an_error_with_a_fix() -> None:
    with pytest.raises(HostError, match="free one of them"):
        choose(["10.0.0.0/8"])


def test_addresses_do_not_overlap() -> None:
    plan = NetworkPlan("10.200.0.0/16")
    ranges = [ipaddress.ip_network(plan.pods(index)) for index in range(1, 17)]
    addresses = [ipaddress.ip_address(each) for each in (plan.host, plan.node(1), plan.node(16))]
    assert len(set(ranges)) == 16
    assert not any(address in each for each in ranges for address in addresses)


def test_the_service_leads_to_the_api_server() -> None:
    rules = service_rules(NetworkPlan("10.207.0.0/16"))
    assert rules.count("ip daddr 10.96.0.1 tcp dport 443 dnat to 10.207.0.1:6443") == 2
