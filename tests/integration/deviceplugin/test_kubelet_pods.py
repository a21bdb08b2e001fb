"""The kubelet's /pods: pinned to its certificate, with our token, in a second at most."""

import asyncio
import datetime as dt
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from deviceplugin.errors import KubeletError
from deviceplugin.kubelet_pods import KubeletPods

pytestmark = pytest.mark.integration

POD = '{"metadata":{"name":"a","namespace":"d","uid":"u"},"spec":{"nodeName":"n"},"status":{}}'


def self_signed(folder: Path, name: str) -> Path:
    """A certificate as a kubelet makes one for itself, its key beside it."""
    key = ec.generate_private_key(ec.SECP256R1())
    who = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(who)
        .issuer_name(who)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    path = folder / f"{name}.crt"
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    path.with_suffix(".key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )
    return path


class Kubelet:
    """Its HTTPS port: what it answers, and the token that it was shown."""

    def __init__(self, certificate: Path) -> None:
        self.certificate = certificate
        self.token = certificate.with_name("token")
        self.token.write_text("first\n")
        self.status, self.body = 200, f'{{"items":[{POD}]}}'
        self.hangs = False
        self.shown: list[str] = []
        self.port = 0

    async def pods(self, request: web.Request) -> web.Response:
        self.shown.append(request.headers["Authorization"])
        if self.hangs:
            await asyncio.Event().wait()
        return web.Response(status=self.status, text=self.body)

    def source(self, certificate: Path | None = None) -> KubeletPods:
        return KubeletPods("127.0.0.1", self.port, certificate or self.certificate, self.token)


@pytest.fixture
async def kubelet(tmp_path: Path) -> AsyncIterator[Kubelet]:
    made = Kubelet(self_signed(tmp_path, "node-1"))
    app = web.Application()
    app.router.add_get("/pods", made.pods)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(made.certificate, made.certificate.with_suffix(".key"))
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    made.port = runner.addresses[0][1]
    yield made
    await runner.cleanup()


async def test_lists_the_pods_with_the_token_of_the_moment(kubelet: Kubelet) -> None:
    async with kubelet.source() as source:
        (pod,) = await source.fetch()
        assert (pod.uid, pod.node) == ("u", "n")
        kubelet.token.write_text("renewed")
        await source.fetch()
    assert kubelet.shown == ["Bearer first", "Bearer renewed"]


async def test_a_stranger_on_the_port_is_not_shown_the_token(
    kubelet: Kubelet, tmp_path: Path
) -> None:
    async with kubelet.source(self_signed(tmp_path, "other")) as source:
        with pytest.raises(KubeletError, match="CERTIFICATE_VERIFY_FAILED"):
            await source.fetch()
    assert kubelet.shown == []


async def test_a_missing_right_is_named(kubelet: Kubelet) -> None:
    kubelet.status, kubelet.body = 403, "Forbidden"
    async with kubelet.source() as source:
        with pytest.raises(KubeletError, match=r"403 Forbidden.*get nodes/pods"):
            await source.fetch()


@pytest.mark.parametrize("body", ["", "[]", '{"items":[{}]}', '{"items":'])
async def test_an_answer_that_is_no_list_of_pods_is_an_error(kubelet: Kubelet, body: str) -> None:
    kubelet.body = body
    async with kubelet.source() as source:
        with pytest.raises(KubeletError):
            await source.fetch()


async def test_a_kubelet_that_does_not_answer_is_given_up_after_a_second(
    kubelet: Kubelet,
) -> None:
    kubelet.hangs = True
    async with kubelet.source() as source, asyncio.timeout(2):
        with pytest.raises(KubeletError, match="Timeout"):
            await source.fetch()


@pytest.mark.parametrize("missing", ["token", "node-1.crt"])
async def test_a_missing_file_is_an_error_that_names_it(
    kubelet: Kubelet, tmp_path: Path, missing: str
) -> None:
    (tmp_path / missing).unlink()
    async with kubelet.source() as source:
        with pytest.raises(KubeletError, match=missing):
            await source.fetch()
