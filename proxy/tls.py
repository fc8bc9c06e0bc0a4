"""The TLS context that the settings describe."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final

from proxy.settings import Settings, SettingsError

_VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


def tls_context(settings: Settings, *, ask_clients: bool = True) -> ssl.SSLContext | None:
    """A new context from the files as they are now, or None for plain HTTP.

    With a CA for clients and unless not to `ask_clients`, a connection needs a
    certificate that this CA signed and its CRL does not revoke. Raises SettingsError naming
    what cannot be used.
    """
    if settings.tls_cert_file is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[settings.tls_min_version]
    context.set_alpn_protocols(["http/1.1"])
    _load_certificate(context, settings, settings.tls_cert_file)
    if settings.tls_client_ca_file is not None and ask_clients:
        context.verify_mode = ssl.CERT_REQUIRED
        _load_authorities(context, settings.tls_client_ca_file)
        if settings.tls_crl_file is not None:
            _load_authorities(context, settings.tls_crl_file)
            context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    return context


def tls_files(settings: Settings) -> list[Path]:
    """The files that a context is made of: a change of one asks for a new context."""
    files = (
        settings.tls_cert_file,
        settings.tls_key_file,
        settings.tls_client_ca_file,
        settings.tls_crl_file,
    )
    return [file for file in files if file is not None]


def _load_certificate(context: ssl.SSLContext, settings: Settings, certificate: Path) -> None:
    password = settings.tls_key_password
    # An empty password rather than none: OpenSSL would ask at the terminal.
    secret = "" if password is None else password.get_secret_value()
    try:
        context.load_cert_chain(certificate, settings.tls_key_file, lambda: secret)
    except (OSError, ssl.SSLError, ValueError) as error:
        raise SettingsError(f"TLS certificate or key: {_reason(error)}") from None


def _load_authorities(context: ssl.SSLContext, file: Path) -> None:
    try:
        context.load_verify_locations(file)
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(f"TLS client CA or CRL {file}: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or "not usable"
    return (isinstance(error, OSError) and error.strerror) or "not usable"
