"""Mutual TLS over real sockets: certificates, names and changing files."""

import datetime as dt
import ssl
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from extender.server.tls import client_contexts, is_allowed, peer_names, server_context
from extender.settings.listeners import Tls
from gpushare.errors import SettingsError
from gpusharectl.certificates import files as certificates

NAME = certificates.REPLICA
NOW = dt.datetime.now(dt.UTC)


def write(folder: Path, name: str = NAME, files: dict[str, bytes] | None = None) -> Tls:
    """Write an authority and a certificate as a mounted Secret has them."""
    files = files or certificates.make((name,), now=NOW, days=1)
    folder.mkdir(exist_ok=True)
    for file, key in (("ca.crt", "ca.crt"), ("tls.crt", f"{name}.crt"), ("tls.key", f"{name}.key")):
        path = folder / f"{file}.new"
        path.write_bytes(files[key])
        path.rename(folder / file)
    return Tls(
        certificate=str(folder / "tls.crt"),
        key=str(folder / "tls.key"),
        authority=str(folder / "ca.crt"),
        allowed_names=(NAME,),
    )


def spoil(tls: Tls) -> None:
    Path(tls.key).write_bytes(b"-----BEGIN")


def lose(tls: Tls) -> None:
    Path(tls.authority).unlink()


class Server:
    def __init__(self, tls: Tls) -> None:
        async def names(request: web.Request) -> web.Response:
            if not is_allowed(request, tls.allowed_names):
                return web.Response(status=403)
            return web.json_response(sorted(peer_names(request)))

        app = web.Application()
        app.router.add_get("/", names)
        self._runner, self._tls = web.AppRunner(app), tls
        self.port = 0

    async def __aenter__(self):
        await self._runner.setup()
        context = server_context(self._tls)
        await web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=context).start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def get(self, context: ssl.SSLContext, name: str = NAME) -> tuple[int, list[str]]:
        url = f"https://127.0.0.1:{self.port}/"
        async with (
            aiohttp.ClientSession() as session,
            session.get(url, ssl=context, server_hostname=name) as answer,
        ):
            return answer.status, await answer.json() if answer.status == 200 else []


async def test_a_certificate_of_the_authority_is_accepted_and_its_name_read(tmp_path):
    tls = write(tmp_path)
    async with Server(tls) as server:
        assert await server.get(client_contexts(tls).current()) == (200, [NAME])


async def test_servers_and_clients_reject_another_name_of_the_same_authority(tmp_path):
    files = certificates.make((NAME, "other"), now=NOW, days=1)
    tls, other = write(tmp_path / "a", NAME, files), write(tmp_path / "b", "other", files)
    async with Server(tls) as server:
        assert (await server.get(client_contexts(other).current()))[0] == 403
    async with Server(other) as server:
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await server.get(client_contexts(tls).current())


async def test_a_certificate_of_another_authority_and_none_are_rejected(tmp_path):
    tls, stranger = write(tmp_path / "a"), write(tmp_path / "b")
    mixed = Tls(stranger.certificate, stranger.key, tls.authority, (NAME,))
    bare = ssl.create_default_context(cafile=tls.authority)
    async with Server(tls) as server:
        for context in (client_contexts(mixed).current(), bare):
            with pytest.raises(aiohttp.ClientError):
                await server.get(context)


async def test_new_files_count_for_new_connections_on_both_sides_and_old_ones_no_more(tmp_path):
    tls = write(tmp_path)
    contexts = client_contexts(tls)
    before = contexts.current()
    async with Server(tls) as server:
        assert (await server.get(before))[0] == 200
        assert contexts.current() is before
        write(tmp_path)
        assert contexts.current() is not before
        assert (await server.get(contexts.current()))[0] == 200
        with pytest.raises(aiohttp.ClientError):
            await server.get(before)


async def test_files_caught_half_written_leave_the_last_good_ones_in_use(tmp_path):
    tls = write(tmp_path)
    contexts = client_contexts(tls)
    before = contexts.current()
    async with Server(tls) as server:
        for damage in (spoil, lose):
            damage(tls)
            assert contexts.current() is before
            assert (await server.get(before))[0] == 200
        write(tmp_path)
        assert contexts.current() is not before
        assert (await server.get(contexts.current()))[0] == 200


def test_unusable_files_at_the_start_are_named(tmp_path):
    tls = write(tmp_path)
    Path(tls.certificate).write_bytes(b"nonsense")
    with pytest.raises(SettingsError, match=r"tls\.crt"):
        client_contexts(tls)
    Path(tls.certificate).unlink()
    with pytest.raises(SettingsError, match=r"tls\.crt"):
        server_context(tls)
