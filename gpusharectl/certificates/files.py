"""Makes the certificates by which replicas authenticate each other, as PEM files.

They are signed by a new certificate authority whose key is discarded, so nothing else can be signed
with it.
"""

import datetime as dt
from collections.abc import Mapping
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

REPLICA: Final = "gpushare-extender"  # the name of every replica, as server and as client
SCHEDULER: Final = "gpushare-scheduler"  # for a kube-scheduler on another machine
_SKEW: Final = dt.timedelta(hours=1)  # tolerated for clocks of other machines


def make(
    names: tuple[str, ...],
    *,
    now: dt.datetime,
    days: int,
    hosts: Mapping[str, tuple[str, ...]] | None = None,
) -> dict[str, bytes]:
    """Return PEM files by name: ``ca.crt``, and ``<name>.crt`` and ``<name>.key`` for each name.

    Every certificate is valid for servers and clients. Its DNS names are its name and ``hosts``.
    """
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority = _subject("gpushare authority")
    root = (
        _builder(authority, authority, authority_key.public_key(), now, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(
            x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False
        )
        .sign(authority_key, hashes.SHA256())
    )
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    both = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    files = {"ca.crt": root.public_bytes(serialization.Encoding.PEM)}
    for name in names:
        key = ec.generate_private_key(ec.SECP256R1())
        made = (
            _builder(_subject(name), authority, key.public_key(), now, days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_dns_names(name, *(hosts or {}).get(name, ())), critical=False)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(both, critical=False)
            .add_extension(issuer, critical=False)
            .sign(authority_key, hashes.SHA256())
        )
        files[f"{name}.crt"] = made.public_bytes(serialization.Encoding.PEM)
        files[f"{name}.key"] = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    return files


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _dns_names(*names: str) -> x509.SubjectAlternativeName:
    return x509.SubjectAlternativeName([x509.DNSName(each) for each in names])


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    now: dt.datetime,
    days: int,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + dt.timedelta(days=days))
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )
