"""Servers whose certificates Go accepts are accepted, whatever Python's defaults are."""

import ssl

import pytest

from gpushare.kube.connection.access import Certificates
from gpushare.kube.connection.trust import trusting
from tests.fakes.certificates import certificate


def shake_hands(client, server):
    """Complete a TLS handshake in memory; raise ssl.SSLError if a side refuses."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(to_client, to_server, server_hostname="127.0.0.1"),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    while sides:
        for side in list(sides):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            sides.remove(side)


@pytest.fixture
def strict(monkeypatch):
    """Set the flag that Python sets from 3.13 on."""
    default = ssl.create_default_context

    def made(*args, **more):
        context = default(*args, **more)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", made)
    return made


def test_an_authority_without_key_identifiers_is_accepted(tmp_path, strict):
    authority = certificate(tmp_path, "authority")
    shown = certificate(tmp_path, "server", signed_by=authority)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(shown, shown.with_suffix(".key"))
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(strict(cafile=authority), server)
    shake_hands(trusting(authority), server)
    shake_hands(Certificates(authority.read_bytes()).context(), server)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(trusting(certificate(tmp_path, "other")), server)
