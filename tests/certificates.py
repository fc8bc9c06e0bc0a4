"""Certificates for tests: an authority, what it signs, and what it revokes."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_NOW = datetime.datetime.now(datetime.UTC)
_BEGIN, _END = _NOW - datetime.timedelta(days=1), _NOW + datetime.timedelta(days=1)


class Authority:
    """Signs certificates for 127.0.0.1 and for clients; writes PEM files into `folder`."""

    def __init__(self, folder: Path, name: str = "test authority") -> None:
        self.folder = folder
        self._name = _name(name)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._revoked: list[int] = []
        certificate = self._sign(self._name, self._key.public_key(), authority=True)
        self.file = folder / f"{name.replace(' ', '-')}.pem"
        self.file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, password: bytes | None = None) -> tuple[Path, Path]:
        """A new certificate and its key. Called again, it overwrites both files."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._sign(_name(name), key.public_key())
        files = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        files[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        files[1].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.BestAvailableEncryption(password)
                if password
                else serialization.NoEncryption(),
            )
        )
        return files

    def revoke(self, certificate: Path | None = None) -> Path:
        """The revocation list, with this certificate on it too."""
        if certificate is not None:
            self._revoked.append(
                x509.load_pem_x509_certificate(certificate.read_bytes()).serial_number
            )
        builder = x509.CertificateRevocationListBuilder(
            issuer_name=self._name, last_update=_BEGIN, next_update=_END
        )
        for serial in self._revoked:
            entry = x509.RevokedCertificateBuilder(serial, _BEGIN).build()
            builder = builder.add_revoked_certificate(entry)
        signed = builder.sign(self._key, hashes.SHA256())
        file = self.folder / "revoked.pem"
        file.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        return file

    def client(self, certificate: tuple[Path, Path] | None = None) -> ssl.SSLContext:
        """A client's context that trusts this authority, with its own certificate if given."""
        context = ssl.create_default_context(cafile=self.file)
        if certificate is not None:
            context.load_cert_chain(*certificate)
        return context

    def _sign(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, *, authority: bool = False
    ) -> x509.Certificate:
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        return (
            x509.CertificateBuilder(
                self._name, subject, key, x509.random_serial_number(), _BEGIN, _END
            )
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([address]), critical=False)
            .sign(self._key, hashes.SHA256())
        )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])
