"""The kubelet's /pods: its certificate is verified, and it has one second to answer."""

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from deviceplugin.errors import KubeletError
from deviceplugin.kubelet import pods_endpoint
from deviceplugin.kubelet.pods_endpoint import KubeletPods
from deviceplugin.settings import KubeletTls
from localcluster.wait import patient
from tests.fakes.certificates import certificate

pytestmark = pytest.mark.integration

POD = '{"metadata":{"name":"a","namespace":"d","uid":"u"},"spec":{"nodeName":"n"},"status":{}}'


class Kubelet:
    """The kubelet's HTTPS port, and the tokens that it has received."""

    def __init__(self, certificate: Path) -> None:
        self.certificate = certificate
        self.token = certificate.with_name("token")
        self.token.write_text("first\n")
        self.status, self.body = 200, f'{{"items":[{POD}]}}'
        self.headers: dict[str, str] = {}
        self.hangs = self.is_endless = False
        self.tokens: list[str] = []
        self.port = 0

    async def pods(self, request: web.Request) -> web.StreamResponse:
        self.tokens.append(request.headers["Authorization"])
        if self.hangs or self.is_endless:
            answer = web.StreamResponse()
            await answer.prepare(request)
            await answer.write(b'{"items":[')
            if self.hangs:
                await asyncio.Event().wait()
            while request.transport is not None and not request.transport.is_closing():
                await answer.write(b" " * 2**16)
                await asyncio.sleep(0)
            return answer
        return web.Response(status=self.status, text=self.body, headers=self.headers)

    def source(self, trusted: Path | None = None, tls: KubeletTls = "pin") -> KubeletPods:
        return KubeletPods("127.0.0.1", self.port, trusted or self.certificate, self.token, tls)


@asynccontextmanager
async def serving(shown: Path) -> AsyncIterator[Kubelet]:
    made = Kubelet(shown)
    app = web.Application()
    app.router.add_get("/pods", made.pods)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(shown, shown.with_suffix(".key"))
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    made.port = runner.addresses[0][1]
    yield made
    await runner.cleanup()


async def failure(source: KubeletPods, match: str) -> str:
    """Return the error of ``source``, which must match."""
    async with source:
        with pytest.raises(KubeletError, match=match) as failed:
            await source.fetch()
    return str(failed.value)


@pytest.fixture
async def kubelet(tmp_path: Path) -> AsyncIterator[Kubelet]:
    async with serving(certificate(tmp_path, "node-1")) as made:
        yield made


async def test_pods_are_listed_with_the_current_token(kubelet: Kubelet) -> None:
    async with kubelet.source() as source:
        (pod,) = await source.fetch()
        assert (pod.uid, pod.node) == ("u", "n")
        kubelet.token.write_text("renewed")
        await source.fetch()
    assert kubelet.tokens == ["Bearer first", "Bearer renewed"]


async def test_another_server_on_the_port_does_not_receive_the_token(
    kubelet: Kubelet, tmp_path: Path
) -> None:
    other = certificate(tmp_path, "other")
    await failure(kubelet.source(other), r"another certificate.*--kubelet-certificate")
    assert kubelet.tokens == []


async def test_a_certificate_signed_by_the_pinned_one_is_rejected(
    tmp_path: Path,
) -> None:
    authority = certificate(tmp_path, "authority")
    async with serving(certificate(tmp_path, "node-1", signed_by=authority)) as kubelet:
        await failure(kubelet.source(authority), "--kubelet-tls=ca")
        assert kubelet.tokens == []


async def test_a_pinned_certificate_may_be_expired_and_name_another_address(tmp_path: Path) -> None:
    old = certificate(tmp_path, "node-1", days=-2, address="192.0.2.1")
    async with serving(old) as kubelet, kubelet.source() as source:
        assert len(await source.fetch()) == 1


async def test_only_the_first_certificate_of_the_file_is_pinned(
    kubelet: Kubelet, tmp_path: Path
) -> None:
    other = certificate(tmp_path, "other")
    chain = tmp_path / "chain.crt"
    for first, second in ((kubelet.certificate, other), (other, kubelet.certificate)):
        chain.write_text(f"a remark\n{first.read_text()}{second.read_text()}")
        if first is other:
            await failure(kubelet.source(chain), "another certificate")
            continue
        async with kubelet.source(chain) as source:
            assert await source.fetch()


async def test_a_renewed_certificate_is_read_again(kubelet: Kubelet, tmp_path: Path) -> None:
    pinned = tmp_path / "pinned.crt"
    pinned.write_bytes(certificate(tmp_path, "before").read_bytes())
    async with kubelet.source(pinned) as source:
        with pytest.raises(KubeletError, match="another certificate"):
            await source.fetch()
        fresh = tmp_path / "fresh"
        fresh.write_bytes(kubelet.certificate.read_bytes())
        fresh.replace(pinned)
        assert await source.fetch()


async def test_a_certificate_of_the_authority_is_accepted(tmp_path: Path) -> None:
    authority = certificate(tmp_path, "authority")
    async with (
        serving(certificate(tmp_path, "node-1", signed_by=authority)) as kubelet,
        kubelet.source(authority, "ca") as source,
    ):
        assert len(await source.fetch()) == 1


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda folder, ca: certificate(folder, "n", signed_by=ca, address="192.0.2.1"), "address"),
        (lambda folder, ca: certificate(folder, "n", signed_by=ca, days=-2), "expired"),
        (lambda folder, ca: certificate(folder, "n"), "--kubelet-tls=pin"),
    ],
    ids=["another address", "expired", "signed by itself"],
)
async def test_any_other_certificate_is_rejected(
    tmp_path: Path, made: Callable[[Path, Path], Path], said: str
) -> None:
    authority = certificate(tmp_path, "authority")
    async with serving(made(tmp_path, authority)) as kubelet:
        text = await failure(kubelet.source(authority, "ca"), said)
        assert "--node-address" in text
        assert kubelet.tokens == []


@pytest.mark.parametrize(
    ("status", "fix"),
    [
        (403, "`get nodes/pods`"),
        (401, "authentication.webhook.enabled"),
        (404, "is this the port of a kubelet"),
        (599, "is this the port of a kubelet"),
    ],
)
async def test_an_error_status_names_its_fix(kubelet: Kubelet, status: int, fix: str) -> None:
    kubelet.status, kubelet.body = status, "Forbidden " * 1000
    text = await failure(kubelet.source(), fix)
    assert f"{status} Forbidden" in text
    assert len(text) < 600


async def test_a_redirect_is_not_followed(kubelet: Kubelet) -> None:
    kubelet.status, kubelet.headers = 302, {"Location": f"https://127.0.0.1:{kubelet.port}/pods"}
    await failure(kubelet.source(), "302")
    assert len(kubelet.tokens) == 1


@pytest.mark.parametrize(
    "body",
    [
        *("", "[]", '{"items":[{}]}', '{"items":', "\x00\xff", "<html>"),
        *("[" * 100_000, '{"kind":' + "[" * 100_000),
    ],
    ids=["empty", "list", "other shape", "half", "binary", "HTML", "deep", "deep next to it"],
)
async def test_an_answer_other_than_a_list_of_pods_is_an_error(kubelet: Kubelet, body: str) -> None:
    kubelet.body = body
    await failure(kubelet.source(), "not a list of pods")


async def test_a_kubelet_that_does_not_answer_times_out_after_a_second(
    kubelet: Kubelet,
) -> None:
    kubelet.hangs = True
    async with asyncio.timeout(patient(2)):
        await failure(kubelet.source(), r"Timeout.*did not answer within 1 s")


async def test_an_answer_without_end_is_cut_off(
    kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubelet.is_endless = True
    monkeypatch.setattr(pods_endpoint, "MOST_BYTES", 2**20)
    await failure(kubelet.source(), "longer than 1048576 bytes")


async def test_a_very_long_list_is_read(kubelet: Kubelet) -> None:
    kubelet.body = f'{{"items":[{",".join([POD] * 20_000)}]}}'
    async with kubelet.source() as source:
        assert len(await source.fetch()) == 20_000


async def test_a_closed_port_is_an_error_that_names_it(kubelet: Kubelet, unused_port: int) -> None:
    kubelet.port = unused_port
    await failure(kubelet.source(), f"port {unused_port}.*--kubelet-port")


async def test_the_kubelet_is_called_without_a_proxy(
    kubelet: Kubelet, unused_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        for each in (name, name.upper()):
            monkeypatch.setenv(each, f"http://127.0.0.1:{unused_port}")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    assert os.environ["https_proxy"]
    async with kubelet.source() as source:
        assert await source.fetch()


@pytest.mark.parametrize("tls", ["pin", "ca"])
@pytest.mark.parametrize("content", ["", "-----BEGIN CERTIFICATE-----\nx\n", "\x00\xff"])
async def test_a_certificate_file_without_a_certificate_is_an_error_that_names_it(
    kubelet: Kubelet, tmp_path: Path, tls: KubeletTls, content: str
) -> None:
    (tmp_path / "empty.crt").write_bytes(content.encode("latin-1"))
    await failure(kubelet.source(tmp_path / "empty.crt", tls), r"empty\.crt")


@pytest.mark.parametrize("missing", ["token", "node-1.crt"])
async def test_a_missing_file_is_an_error_that_names_it(
    kubelet: Kubelet, tmp_path: Path, missing: str
) -> None:
    (tmp_path / missing).unlink()
    await failure(kubelet.source(), missing)
