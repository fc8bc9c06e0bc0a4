"""What guards the gateway, read from its files at start and again when they change."""

from __future__ import annotations

from pathlib import Path

from pydantic import SecretStr

from proxy.access import Access, Group
from proxy.api_keys import KeysError, read_keys
from proxy.reload import Reloader
from proxy.server import HttpServer, Tls
from proxy.settings import Settings, SettingsError
from proxy.tls import tls_context, tls_files


async def put_in_force(
    settings: Settings, access: Access, server: HttpServer, reloader: Reloader
) -> None:
    """Read keys and certificates and keep them current. Raises SettingsError."""
    rings = (
        (Group.SERVICE, settings.api_keys_file, settings.api_keys),
        (Group.MANAGEMENT, settings.management_keys_file, settings.management_keys),
    )
    for group, file, inline in rings:
        if file is not None or inline is not None:
            await _add_ring(reloader, access, group, file, inline)
    if settings.tls_cert_file is not None:
        await reloader.add("TLS files", tls_files(settings), _TlsReader(settings, server))


async def _add_ring(
    reloader: Reloader, access: Access, group: Group, file: Path | None, inline: SecretStr | None
) -> None:
    text = None if inline is None else inline.get_secret_value()

    async def read() -> None:
        try:
            access.replace(group, read_keys(file, text))
        except KeysError as error:
            raise SettingsError(f"{group} keys: {error}") from None

    await reloader.add(f"{group} keys", [] if file is None else [file], read)


class _TlsReader:
    """New connections get the new certificate; those that are open keep theirs."""

    def __init__(self, settings: Settings, server: HttpServer) -> None:
        self._settings = settings
        self._server = server

    async def __call__(self) -> None:
        service = tls_context(self._settings)
        others = tls_context(self._settings, ask_clients=False)
        await self._server.use_tls(Tls(service, others))
