"""A full cluster in which all works, and in which authors of pods make mistakes, for six hours.

Replica a of the extender is the leader, and b follows. After three hours c replaces a, and its
counters begin again.
"""

_HOURS = 6 * 60
_REASON = "gpushare_extender_waiting_pods_by_reason"
_PODS = 'namespace="ml",pod="train",container="main",card="0",uuid="GPU-1"'


def _steady(value: float) -> str:
    return f"{value}x{_HOURS}"


def _growing(step: float) -> str:
    return f"0+{step}x{_HOURS}"


def _now_and_then(value: float) -> str:
    """Return a value that is there for two of four minutes, again and again."""
    return " ".join([f"0 0 {value} {value}"] * (_HOURS // 4))


def _on_every_replica() -> dict[str, str]:
    gone, new = "{}x180 stale", "_x182 {}x178"
    shown = {
        _REASON + '{{instance="{}",reason="no single GPU has enough free aliyun.com/gpu-mem"}}': 12,
        _REASON + '{{instance="{}",reason="the pod\'s own request"}}': 1,
        'gpushare_cluster_fragmentation_ratio{{instance="{}"}}': 1,
        'gpushare_cluster_largest_request_units{{instance="{}"}}': 2,
        'gpushare_extender_pending_pods{{instance="{}"}}': 15,
        'gpushare_extender_pending_least_units{{instance="{}"}}': 2,  # its model is full
        'gpushare_node_units{{instance="{}",node="n1"}}': 320,
        'gpushare_node_free_units{{instance="{}",node="n1"}}': 12,
        'gpushare_node_unit_bytes{{instance="{}",node="n1"}}': 2**30,
        'gpushare_node_over_units{{instance="{}",node="n1"}}': 0,
        'gpushare_namespace_used_bytes{{instance="{}",namespace="ml"}}': 308 * 2**30,
        'gpushare_unplaced_pods{{instance="{}"}}': 0,
        'gpushare_changed_decisions{{instance="{}"}}': 0,
        'gpushare_unreadable_quotas{{instance="{}"}}': 0,
        'gpushare_unreadable_inventories{{instance="{}"}}': 0,
        'gpushare_gang_longest_incomplete_seconds{{instance="{}"}}': 40,
        'gpushare_extender_cache_age_seconds{{instance="{}",resource="pods"}}': 30,
        'gpushare_extender_cache_age_seconds{{instance="{}",resource="failed_pods"}}': 300,
        'gpushare_ledger_differences_total{{instance="{}"}}': 0,
        'gpushare_extender_preemptions_in_vain_total{{instance="{}"}}': 0,
        'gpushare_extender_broken_gangs_total{{instance="{}"}}': 0,
        'gpushare_extender_evictions_total{{instance="{}",reason="CardOverbooked"}}': 0,
        'gpushare_extender_certificate_end_timestamp_seconds{{instance="{}",file="tls.crt"}}': 9e6,
    }
    return {
        name.format(instance): values.format(value)
        for name, value in shown.items()
        for instance, values in (("a", gone), ("b", _steady(value)), ("c", new))
    }


def _of_leaders() -> dict[str, str]:
    """Kube-scheduler asks for its waiting pods every five minutes only."""
    asked = " ".join(f"{15 * turn}x4" for turn in range(_HOURS // 10))
    calls = 'gpushare_extender_requests_total{{instance="{}",verb="filter",outcome="none"}}'
    seconds = "gpushare_extender_request_duration_seconds_bucket"
    return {
        'gpushare_extender_leader{instance="a"}': "1x180 stale",
        'gpushare_extender_leader{instance="b"}': "0x181 1x179",
        'gpushare_extender_leader{instance="c"}': "_x182 0x178",
        'gpushare_queue_first_seconds{instance="a"}': "0+60x180 stale",
        'gpushare_queue_first_seconds{instance="b"}': "0x181 10860+60x179",
        'gpushare_unknown_reserves{instance="a"}': _now_and_then(1),
        calls.format("a"): f"{asked} stale",
        calls.format("b"): f"0x182 {asked}",
        f'{seconds}{{instance="a",verb="filter",le="0.01"}}': _growing(3),
        f'{seconds}{{instance="a",verb="filter",le="+Inf"}}': _growing(3),
        'gpushare_ledger_audits_total{instance="a"}': "0+1x180 stale",
        'gpushare_ledger_audits_total{instance="b"}': _growing(1),
        'gpushare_ledger_audits_total{instance="c"}': "_x182 0+1x178",
    }


def _of_the_plugin() -> dict[str, str]:
    refused = "gpushare_deviceplugin_refused_total"
    others = "gpushare_deviceplugin_others_used_mib"
    return {
        # A pod that sets NVIDIA_VISIBLE_DEVICES and is created again, and one bound by hand.
        f'{refused}{{node="n1",reason="SetsVisibleDevices"}}': _growing(1),
        f'{refused}{{node="n1",reason="NoDecision"}}': f"0x60 1x{_HOURS - 60}",
        'gpushare_card_units{node="n1",card="0",uuid="GPU-1"}': _steady(80),
        'gpushare_deviceplugin_card_state{node="n1",card="GPU-1",state="healthy"}': _steady(1),
        'gpushare_deviceplugin_card_state{node="n1",card="GPU-1",state="gone"}': _steady(0),
        'gpushare_deviceplugin_card_state{node="n1",card="GPU-1",state="unhealthy"}': _steady(0),
        'gpushare_deviceplugin_registered{node="n1"}': f"1x99 0 1x{_HOURS - 100}",
        'gpushare_deviceplugin_list_refused{node="n1"}': _steady(0),
        'gpushare_deviceplugin_list_warnings{node="n1",reason="DeviceListLarge"}': _steady(0),
        'gpushare_deviceplugin_blocked{node="n1",name="unit"}': _steady(0),
        'gpushare_deviceplugin_forgotten_pods{node="n1"}': _steady(0),
        'gpushare_deviceplugin_never_asked_for_pods{node="n1"}': _steady(0),
        'gpushare_deviceplugin_limits_missing{node="n1"}': _steady(0),
        'gpushare_deviceplugin_reports_waiting{node="n1"}': _now_and_then(3),
        f'gpushare_deviceplugin_pod_used_mib{{node="n1",{_PODS}}}': _steady(40960),
        f'gpushare_deviceplugin_pod_asked_mib{{node="n1",{_PODS}}}': _steady(40960),
        f'{others}{{node="n1",card="0",uuid="GPU-1",by="host"}}': _steady(300),
        f'{others}{{node="n1",card="0",uuid="GPU-1",by="ended-pod"}}': _now_and_then(9000),
    }


BUSY = _on_every_replica() | _of_leaders() | _of_the_plugin()
