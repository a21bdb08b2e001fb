"""Certificates as kubelets have them: self-signed, or signed by an authority."""

import datetime as dt
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def certificate(
    folder: Path,
    name: str,
    *,
    signed_by: Path | None = None,
    address: str = "127.0.0.1",
    days: int = 1,
) -> Path:
    """Write a certificate and its key, self-signed or ``signed_by`` another; return its path.

    It is valid for ``days`` from now; a negative number makes one that has expired.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    who = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    issuer, signer = who, key
    if signed_by is not None:
        issuer = x509.load_pem_x509_certificate(signed_by.read_bytes()).subject
        loaded = serialization.load_pem_private_key(
            signed_by.with_suffix(".key").read_bytes(), None
        )
        assert isinstance(loaded, ec.EllipticCurvePrivateKey)
        signer = loaded
    until = dt.datetime.now(dt.UTC) + dt.timedelta(days=days)
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
    made = (
        x509.CertificateBuilder()
        .subject_name(who)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(until - dt.timedelta(days=9))
        .not_valid_after(until)
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(signed_by is None, None), critical=True)
        .sign(signer, hashes.SHA256())
    )
    path = folder / f"{name}.crt"
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    path.with_suffix(".key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )
    return path
