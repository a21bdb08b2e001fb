"""The cluster's certificate authority, its certificates, and kubeconfig files."""

import datetime as dt
import ipaddress
from pathlib import Path
from typing import Any

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_DAY = dt.timedelta(days=1)
_LIFETIME = 365 * _DAY


class Authority:
    """Signs certificates into one folder: `<name>.crt` and `<name>.key`, PEM."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.certificate = folder / "ca.crt"
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _subject("localcluster", ())
        usage = x509.BasicConstraints(ca=True, path_length=0)
        builder = _builder(self._name, self._name, self._key).add_extension(usage, critical=True)
        self._write("ca", self._key, builder.sign(self._key, hashes.SHA256()))

    def sign(
        self,
        name: str,
        *,
        user: str,
        groups: tuple[str, ...] = (),
        addresses: tuple[str, ...] = (),
        hosts: tuple[str, ...] = (),
    ) -> tuple[Path, Path]:
        """Write a certificate for client and server use; return the paths of it and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        alternatives = [
            *(x509.IPAddress(ipaddress.ip_address(each)) for each in addresses),
            *(x509.DNSName(each) for each in hosts),
        ]
        usage = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        builder = _builder(_subject(user, groups), self._name, key)
        builder = builder.add_extension(x509.ExtendedKeyUsage(usage), critical=False)
        if alternatives:
            names = x509.SubjectAlternativeName(alternatives)
            builder = builder.add_extension(names, critical=False)
        return self._write(name, key, builder.sign(self._key, hashes.SHA256()))

    def _write(
        self, name: str, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate
    ) -> tuple[Path, Path]:
        crt, private = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        crt.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        write_key(private, key)
        return crt, private


def write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    """Write a private key as PEM, readable by the owner only."""
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )


def write_signing_keys(folder: Path) -> tuple[Path, Path]:
    """Write the pair that signs ServiceAccount tokens; return the public and private paths."""
    key = ec.generate_private_key(ec.SECP256R1())
    public, private = folder / "service-accounts.pub", folder / "service-accounts.key"
    public.write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    write_key(private, key)
    return public, private


def write_kubeconfig(path: Path, *, server: str, authority: Path, user: dict[str, Any]) -> Path:
    """Write a kubeconfig whose only user has the fields `user`; return its path."""
    name = "localcluster"
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": name, "cluster": {"server": server, "certificate-authority": str(authority)}}
        ],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return path


def _subject(user: str, groups: tuple[str, ...]) -> x509.Name:
    organizations = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, each) for each in groups]
    return x509.Name([*organizations, x509.NameAttribute(NameOID.COMMON_NAME, user)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + _LIFETIME)
    )
