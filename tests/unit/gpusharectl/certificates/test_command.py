"""``gpushare certificates`` prints Secrets with valid certificates."""

import base64
import datetime as dt
import sys

import yaml
from click.testing import CliRunner
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from gpusharectl.app import cli
from gpusharectl.certificates import files as certificates

DNS_NAMES = {
    "gpushare-extender-tls": ["gpushare-extender", "gpushare-extender.elsewhere.svc"],
    "gpushare-scheduler-tls": ["gpushare-scheduler"],
}
NOW = dt.datetime(2026, 11, 21, tzinfo=dt.UTC)


def printed(*words: str) -> list[dict]:
    result = CliRunner().invoke(cli, ["certificates", *words])
    assert result.exit_code == 0, result.output
    return [each for each in yaml.safe_load_all(result.stdout) if each]


def test_the_output_is_two_secrets_with_certificates_of_one_authority():
    found = printed("--system-namespace", "elsewhere")
    names = {each["metadata"]["name"]: each for each in found}
    assert names.keys() == {"gpushare-extender-tls", "gpushare-scheduler-tls"}
    for name, secret in names.items():
        assert (secret["kind"], secret["metadata"]["namespace"]) == ("Secret", "elsewhere")
        data = {key: base64.b64decode(value) for key, value in secret["data"].items()}
        assert data.keys() == {"ca.crt", "tls.crt", "tls.key"}
        authority = x509.load_pem_x509_certificate(data["ca.crt"])
        own = x509.load_pem_x509_certificate(data["tls.crt"])
        own.verify_directly_issued_by(authority)
        dns = own.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert dns.get_values_for_type(x509.DNSName) == DNS_NAMES[name]
        # Helm would delete Secrets that replace the chart's.
        assert secret["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    one, other = (each["data"] for each in found)
    assert one["ca.crt"] == other["ca.crt"]
    assert one["tls.key"] != other["tls.key"]


def test_the_key_of_the_authority_is_not_returned():
    files = certificates.make(("a",), now=NOW, days=1)
    assert files.keys() == {"ca.crt", "a.crt", "a.key"}
    authority = x509.load_pem_x509_certificate(files["ca.crt"])
    own = x509.load_pem_x509_certificate(files["a.crt"])
    assert authority.public_key() != own.public_key()


def test_a_certificate_is_for_servers_and_clients_and_cannot_sign():
    own = x509.load_pem_x509_certificate(certificates.make(("a",), now=NOW, days=1)["a.crt"])
    uses = own.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert set(uses) == {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}
    assert not own.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_a_certificate_is_valid_for_the_requested_days_and_tolerates_clock_skew():
    own = x509.load_pem_x509_certificate(certificates.make(("a",), now=NOW, days=30)["a.crt"])
    assert own.not_valid_before_utc < NOW
    assert own.not_valid_after_utc == NOW + dt.timedelta(days=30)


def test_zero_days_are_rejected():
    result = CliRunner().invoke(cli, ["certificates", "--days=0"])
    assert result.exit_code == 2
    assert "0 is not in the range" in result.stderr


def test_without_its_library_the_command_names_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography", None)
    monkeypatch.delitem(sys.modules, "gpusharectl.certificates.files")
    result = CliRunner().invoke(cli, ["certificates"])
    assert result.exit_code == 2
    said = " ".join(result.stderr.split())
    assert "docker run --rm IMAGE gpushare certificates | kubectl apply -f -" in said
    assert "pip install './gpushare[certificates]'" in said
    assert "'gpushare[" not in said, "the name on the public index belongs to another project"
    assert result.stdout == ""
