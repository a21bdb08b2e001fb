"""What only the chart installs: certificates, webhook, detected versions, monitoring, platforms."""

import base64
import datetime as dt
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from extender.server.paths import ADMISSION
from extender.settings.configuration import Configuration
from extender.settings.file import parse
from gpushare.contract import EXTENDER_PREFIX, RESOURCE_MEMORY, SCHEDULER_NAMES
from gpusharectl.certificates import files as certificates
from localcluster.run import run
from localcluster.tools import tool
from tests.markdown import blocks
from tests.unit.daemonset.test_chart import CHART, ROOT, helm, of_kind, rendered

pytestmark = pytest.mark.usefixtures("helm")

ON = {"enabled": True}
SECOND = {"scheduler": "second"}
WEBHOOK = {**SECOND, "secondScheduler": {"setSchedulerName": "webhook"}}
SERVICE = "gpushare-extender.gpushare-system.svc"
PLATFORMS = sorted((CHART / "values").glob("*.yaml"))
MUTATING = {"MutatingWebhookConfiguration": "webhook", "MutatingAdmissionPolicy": "policy"}


def of_version(version: str, values: dict[str, Any]) -> list[dict[str, Any]]:
    return rendered(values, "--kube-version", version)


def configuration(objects: list[dict[str, Any]]) -> Configuration:
    found = of_kind(objects, "ConfigMap", "gpushare-extender-configuration")
    return parse(found["data"]["extender.yaml"].encode())


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({}, SCHEDULER_NAMES),
        (SECOND, ("gpushare-scheduler",)),
        ({"schedulerNames": ["default-scheduler", "mine"]}, ("default-scheduler", "mine")),
        ({"schedulerNames": ["mine"], "policies": False}, ("mine",)),
    ],
)
def test_the_extender_knows_the_schedulers_whose_pods_may_request_gpu_memory(values, wanted):
    assert configuration(of_version("1.34.4", values)).scheduler_names == wanted


@pytest.mark.parametrize(
    ("cluster", "tag"),
    [
        ("v1.34.4", "v1.34.4"),
        ("v1.33.2-eks-1234", "v1.33.2"),
        ("v1.33.5-gke.1080000", "v1.33.5"),
        ("v1.34.1+k3s1", "v1.34.1"),
        ("v1.34.1+rke2r1", "v1.34.1"),
        ("v1.36.0-rc.1", "v1.36.0-rc.1"),
    ],
)
def test_kube_scheduler_has_the_clusters_version_without_the_providers_suffix(cluster, tag):
    pod = of_kind(of_version(cluster, SECOND), "Deployment")["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == f"registry.k8s.io/kube-scheduler:{tag}"


@pytest.mark.parametrize(
    ("version", "values", "said"),
    [
        ("1.26.3", {}, "chart requires kubeVersion: >=1.27.0-0"),
        (
            "1.34.4",
            {**SECOND, "secondScheduler": {"image": {"tag": "v1.26.3"}}},
            "secondScheduler.image.tag is v1.26.3, and gpushare needs kube-scheduler 1.27 or newer",
        ),
        (
            "1.27.5",
            {**WEBHOOK, "policies": False},
            "setSchedulerName is webhook, but Kubernetes v1.27.5 ignores the webhook's match cond",
        ),
        (
            "1.33.5",
            {"avoidGpuNodes": True},
            "avoidGpuNodes is true, but the API server of Kubernetes v1.33.5 serves no Mutating",
        ),
    ],
)
def test_versions_that_are_too_old_are_refused(version, values, said):
    with pytest.raises(AssertionError, match=re.escape(said)):
        of_version(version, values)


@pytest.mark.parametrize(
    ("version", "values", "wanted"),
    [
        ("1.34.4", {}, set()),  # every profile of kube-scheduler calls the extender
        ("1.34.4", SECOND, {"webhook"}),
        ("1.36.0", SECOND, {"policy"}),
        ("1.36.0", WEBHOOK, {"webhook"}),
        ("1.36.0", {**SECOND, "secondScheduler": {"setSchedulerName": "none"}}, set()),
        (
            "1.36.0",
            {**SECOND, "schedulerNames": ["gpushare-scheduler", "default-scheduler"]},
            set(),
        ),
        ("1.28.0", {**SECOND, "policies": False}, {"webhook"}),
        ("1.27.0", {**SECOND, "policies": False}, set()),  # without match conditions
    ],
)
def test_policy_or_webhook_sets_the_schedulers_name_by_what_the_cluster_has(
    version, values, wanted
):
    objects = of_version(version, values)
    found = {MUTATING[each["kind"]] for each in objects if each["kind"] in MUTATING}
    assert found == wanted
    assert (configuration(objects).listen.admission is not None) == (found == {"webhook"})
    assert any(each["kind"] == "Service" for each in objects) == (found == {"webhook"})


GATES = {"gates": ON}


@pytest.mark.parametrize(
    ("version", "values", "wanted", "port"),
    [
        ("1.34.4", GATES, "webhook", 29770),  # on a node the kubelet has the other port
        ("1.34.4", {**GATES, **SECOND}, "webhook", 10250),
        ("1.36.0", GATES, "policy", None),
        ("1.36.0", {"gates": {**ON, "by": "webhook"}}, "webhook", 29770),
        ("1.27.0", {**GATES, "policies": False}, "webhook", 29770),
    ],
)
def test_policy_or_webhook_gates_pods_by_what_the_cluster_has(version, values, wanted, port):
    objects = of_version(version, values)
    found = [
        MUTATING[each["kind"]]
        for each in objects
        if each["kind"] in MUTATING and each["metadata"]["name"] == "gpushare-gates"
    ]
    assert found == [wanted]
    admission = configuration(objects).listen.admission
    assert (admission.port if admission is not None else None) == port
    targets = [
        each["targetPort"]
        for service in objects
        if service["kind"] == "Service"
        for each in service["spec"]["ports"]
    ]
    assert targets == ([] if port is None else [port])
    names = {each["metadata"]["name"] for each in objects if each["kind"] == "ClusterRole"}
    assert "gpushare-gates" in names


@pytest.mark.parametrize(("version", "api"), [("1.34.4", "v1beta1"), ("1.36.0", "v1")])
def test_the_policy_that_keeps_pods_off_gpu_nodes_has_the_version_that_the_cluster_serves(
    version, api
):
    objects = of_version(version, {"avoidGpuNodes": True})
    found = [each for each in objects if each["kind"].startswith("MutatingAdmissionPolicy")]
    assert [each["apiVersion"] for each in found] == [f"admissionregistration.k8s.io/{api}"] * 2
    assert {each["metadata"]["name"] for each in found} == {"gpushare-avoid-gpu-nodes"}


def test_both_webhooks_are_of_one_service_and_one_authority():
    objects = of_version("1.34.4", {**WEBHOOK, **GATES, "networkPolicy": True})
    secret = of_kind(objects, "Secret", "gpushare-extender-tls")
    first, second = (
        of_kind(objects, "MutatingWebhookConfiguration", name)["webhooks"][0]["clientConfig"]
        for name in ("gpushare-scheduler-name", "gpushare-gates")
    )
    assert first["caBundle"] == second["caBundle"] == secret["data"]["ca.crt"]
    assert first["service"].pop("path") != second["service"].pop("path")
    assert first["service"] == second["service"]
    cert_manager = {"certificates": {"source": "cert-manager"}}
    injected = of_version("1.34.4", {**GATES, **cert_manager})
    own = of_kind(injected, "MutatingWebhookConfiguration", "gpushare-gates")
    annotations = own["metadata"]["annotations"]
    assert annotations == {"cert-manager.io/inject-ca-from": "gpushare-system/gpushare-extender"}
    assert "caBundle" not in own["webhooks"][0]["clientConfig"]


def test_without_gates_nothing_patches_pods():
    assert not [each for each in rendered({}) if "gates" in each["metadata"]["name"]]


@pytest.mark.parametrize(("policies", "failure"), [(True, "Ignore"), (False, "Fail")])
def test_a_webhook_that_does_not_answer_never_lets_a_pod_with_gpu_memory_astray(policies, failure):
    (webhook,) = of_kind(
        of_version("1.29.0" if not policies else "1.34.4", {**WEBHOOK, "policies": policies}),
        "MutatingWebhookConfiguration",
    )["webhooks"]
    assert webhook["failurePolicy"] == failure  # a policy rejects the pod instead
    (condition,) = [
        each["expression"]
        for each in webhook["matchConditions"]
        if each["name"] == "asks-for-gpu-memory"
    ]
    assert RESOURCE_MEMORY in condition


@pytest.mark.parametrize(("version", "by"), [("1.34.4", "webhook"), ("1.36.0", "policy")])
def test_pods_of_the_clusters_own_namespaces_stay_as_they_are(version, by):
    objects = of_version(version, SECOND)
    if by == "webhook":
        (match,) = of_kind(objects, "MutatingWebhookConfiguration")["webhooks"]
    else:
        match = of_kind(objects, "MutatingAdmissionPolicy")["spec"]["matchConstraints"]
    (selected,) = match["namespaceSelector"]["matchExpressions"]
    own = ["kube-system", "gpushare-system"]
    assert (selected["operator"], selected["values"]) == ("NotIn", own)


def notes(folder: Path, *flags: str, values: str = "{}") -> str:
    chart = shutil.copytree(CHART, folder / "chart")
    # helm template renders no notes, except where a template includes them.
    include = '{{ include (print $.Template.BasePath "/NOTES.txt") . | nindent 2 }}'
    (chart / "templates/notes.yaml").write_text(f"notes: |\n{include}\n")
    words = [tool("helm", print), "template", chart, "--namespace", "gpushare-system", *flags]
    text = run([*words, "--show-only", "templates/notes.yaml", "--values", "-"], stdin=values)
    return str(yaml.safe_load(text)["notes"])


@pytest.mark.parametrize(
    ("repository", "hint"),
    [
        ("gpushare", "each node must have the image gpushare:0.1.0 already"),
        ("registry.example.com/team/gpushare", ""),
    ],
)
def test_the_notes_say_if_the_image_has_no_registry(repository, hint, tmp_path):
    found = notes(tmp_path, "--set", f"image.repository={repository}")
    assert hint in found
    assert ("names no registry" in found) is bool(hint)


@pytest.mark.parametrize("platform", ["k3s", "rke2"])
def test_the_notes_have_the_commands_of_the_platforms_page(platform, tmp_path):
    values = (CHART / f"values/{platform}.yaml").read_text()
    found = notes(tmp_path, "--kube-version", f"v1.34.1+{platform}1", values=values)
    page = blocks(ROOT / f"docs/platforms/{platform}.md")
    wanted = [
        each.text
        for each in page
        if "scheduler-config" in each.text or "kube-scheduler-arg" in each.text
    ]
    assert len(wanted) == 2
    for text in wanted:
        assert " ".join(text.split()) in " ".join(found.split())


def test_the_api_server_reaches_the_webhook_and_trusts_it():
    objects = rendered({**WEBHOOK, "networkPolicy": True})
    (webhook,) = of_kind(objects, "MutatingWebhookConfiguration")["webhooks"]
    asked = webhook["clientConfig"]["service"]
    service = of_kind(objects, "Service", asked["name"])
    assert asked["path"] == f"{EXTENDER_PREFIX}/{ADMISSION}"
    pod = of_kind(objects, "Deployment")["spec"]["template"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    (port,) = [each for each in service["spec"]["ports"] if each["port"] == asked["port"]]
    listener = configuration(objects).listen.admission
    assert listener is not None
    assert listener.port == port["targetPort"]
    open_to_all = of_kind(objects, "NetworkPolicy", "gpushare-admission")["spec"]["ingress"]
    assert open_to_all == [{"ports": [{"port": listener.port, "protocol": "TCP"}]}]
    data = of_kind(objects, "Secret", "gpushare-extender-tls")["data"]
    assert webhook["clientConfig"]["caBundle"] == data["ca.crt"]
    assert f"{asked['name']}.{asked['namespace']}.svc" == SERVICE


def test_the_charts_certificates_are_those_of_the_command_line():
    objects = rendered({})
    authorities = set()
    for name, hosts in ((certificates.REPLICA, [SERVICE]), (certificates.SCHEDULER, [])):
        data = of_kind(objects, "Secret", f"{name}-tls")["data"]
        authority, own = (
            x509.load_pem_x509_certificate(base64.b64decode(data[key]))
            for key in ("ca.crt", "tls.crt")
        )
        own.verify_directly_issued_by(authority)
        extensions = own.extensions
        names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert names.get_values_for_type(x509.DNSName) == [name, *hosts]
        uses = extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        assert set(uses) == {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}
        assert not extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        assert (own.not_valid_after_utc - own.not_valid_before_utc).days == 3650
        authorities.add(data["ca.crt"])
    assert len(authorities) == 1


@pytest.mark.parametrize(("days", "renewed"), [(3650, 3285), (200, 170), (90, 60)])
def test_helm_renews_its_certificates_in_time_and_never_deletes_them(days, renewed):
    objects = rendered({"certificates": {"days": days}})
    for name in (certificates.REPLICA, certificates.SCHEDULER):
        secret = of_kind(objects, "Secret", f"{name}-tls")
        own = x509.load_pem_x509_certificate(base64.b64decode(secret["data"]["tls.crt"]))
        annotations = secret["metadata"]["annotations"]
        after = dt.date.fromisoformat(annotations["gpushare.aliyun.com/renew-after"])
        # Helm and the certificate may name neighboring days: local time, and midnight.
        assert abs((after - own.not_valid_before_utc.date()).days - renewed) <= 1
        assert annotations["helm.sh/resource-policy"] == "keep"


def test_an_api_that_may_not_be_evaluated_does_not_replace_the_webhook():
    served = "admissionregistration.k8s.io/v1beta1/MutatingAdmissionPolicy"
    objects = rendered(SECOND, "--kube-version", "1.34.4", "--api-versions", served)
    assert {each["kind"] for each in objects} & set(MUTATING) == {"MutatingWebhookConfiguration"}


def test_cert_manager_makes_the_same_certificates():
    objects = rendered({**WEBHOOK, "certificates": {"source": "cert-manager"}})
    kinds = {each["kind"] for each in objects}
    assert {"Issuer", "Certificate"} <= kinds
    assert "Secret" not in kinds
    for name, hosts in ((certificates.REPLICA, [SERVICE]), (certificates.SCHEDULER, [])):
        spec = of_kind(objects, "Certificate", name)["spec"]
        assert (spec["secretName"], spec["dnsNames"]) == (f"{name}-tls", [name, *hosts])
        assert {"server auth", "client auth"} <= set(spec["usages"])
    own = of_kind(objects, "MutatingWebhookConfiguration")
    injected = own["metadata"]["annotations"]["cert-manager.io/inject-ca-from"]
    assert injected == f"gpushare-system/{certificates.REPLICA}"
    assert "caBundle" not in own["webhooks"][0]["clientConfig"]

    issuer = {"kind": "ClusterIssuer", "name": "mine"}
    theirs = rendered({"certificates": {"source": "cert-manager", "issuer": issuer}})
    made = [each for each in theirs if each["kind"] in {"Issuer", "Certificate"}]
    assert {each["metadata"]["name"] for each in made} == {
        certificates.REPLICA,
        certificates.SCHEDULER,
    }
    assert all(each["spec"]["issuerRef"] == issuer for each in made)


def test_existing_certificates_need_their_authority_for_the_webhook():
    existing = {**WEBHOOK, "certificates": {"source": "existing"}}
    with pytest.raises(AssertionError, match=re.escape("set certificates.authority to its ca.crt")):
        helm("template", existing)
    pem = "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n"
    objects = rendered({**WEBHOOK, "certificates": {"source": "existing", "authority": pem}})
    (webhook,) = of_kind(objects, "MutatingWebhookConfiguration")["webhooks"]
    assert base64.b64decode(webhook["clientConfig"]["caBundle"]).decode() == pem
    assert "Secret" not in {each["kind"] for each in objects}


def test_monitoring_is_that_of_the_folder_and_opens_the_listener():
    folder = ROOT / "monitoring"
    on = {"podMonitor": {**ON, "labels": {"release": "mine"}}, "prometheusRule": ON}
    objects = rendered({"monitoring": {**on, "dashboard": ON}})
    for each in yaml.safe_load_all((folder / "scrape.yaml").read_text()):
        found = of_kind(objects, each["kind"], each["metadata"]["name"])
        assert found.get("spec") == each.get("spec")
        is_monitor = each["kind"] == "PodMonitor"
        assert (found["metadata"]["labels"].get("release") == "mine") == is_monitor
    rule = of_kind(objects, "PrometheusRule")
    assert rule["spec"] == yaml.safe_load((folder / "rules.yaml").read_text())
    dashboard = of_kind(objects, "ConfigMap", "gpushare-dashboard")
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    files = list((folder / "dashboards").glob("*.json"))
    assert dashboard["data"] == {each.name: each.read_text() for each in files}
    assert len(files) == 2
    reading = configuration(objects).listen.reading
    assert reading is not None
    assert (reading.port, reading.access) == (29768, "review")
    assert "Service" not in {each["kind"] for each in objects}


def test_alerts_without_metrics_of_the_extender_are_refused():
    with pytest.raises(AssertionError, match="the alert GpushareExtenderNotScraped fires"):
        helm("template", {"monitoring": {"prometheusRule": ON}})


@pytest.mark.parametrize("mode", ["control-plane", "second"])
def test_the_reading_listener_gets_a_service_and_the_users_settings(mode):
    own = {"configuration": {"listen": {"reading": {"access": "open"}}}}
    objects = rendered({"scheduler": mode, "reading": ON, "extender": own})
    reading = configuration(objects).listen.reading
    assert reading is not None
    assert (reading.port, reading.access) == (29768, "open")
    service = of_kind(objects, "Service")["spec"]
    assert reading.port in {each["targetPort"] for each in service["ports"]}
    (pod,) = [
        each["spec"]["template"]
        for each in objects
        if each["kind"] in {"DaemonSet", "Deployment"}
        and service["selector"].items() <= each["spec"]["template"]["metadata"]["labels"].items()
    ]
    assert "extender" in {each["name"] for each in pod["spec"]["containers"]}


@pytest.mark.parametrize("path", PLATFORMS, ids=lambda path: path.stem)
def test_the_values_of_a_platform_can_be_used(path):
    objects = of_version("1.34.4", yaml.safe_load(path.read_text()))
    assert "gpushare-deviceplugin" in {each["metadata"]["name"] for each in objects}


def test_no_platform_with_values_is_left_out_of_the_charts_documentation():
    text = (CHART / "README.md").read_text()
    assert [each.name for each in PLATFORMS if f"`{each.name}`" not in text] == []


def test_helm_test_runs_a_pod_with_gpu_memory():
    for values, scheduler in (({}, "default-scheduler"), (SECOND, "gpushare-scheduler")):
        (pod,) = [each for each in rendered(values) if each["kind"] == "Pod"]
        assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
        (container,) = pod["spec"]["containers"]
        assert container["resources"]["limits"] == {RESOURCE_MEMORY: 1}
        assert pod["spec"]["schedulerName"] == scheduler


def test_labels_and_annotations_reach_the_objects():
    values = {
        "labels": {"team": "ml"},
        "plugin": {"podAnnotations": {"prometheus.io/port": "29767"}},
        "extender": {"podAnnotations": {"example.com/a": "b"}},
    }
    objects = rendered(values)
    assert {each["metadata"]["labels"]["team"] for each in objects} == {"ml"}
    for name, key in (
        ("gpushare-deviceplugin", "prometheus.io/port"),
        ("gpushare-extender", "example.com/a"),
    ):
        template = of_kind(objects, "DaemonSet", name)["spec"]["template"]
        assert key in template["metadata"]["annotations"]
