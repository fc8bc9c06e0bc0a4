"""The deprecated API made visible: to clients in headers, to operators in a metric.

`Deprecation` (RFC 9745), `Sunset` (RFC 8594) and `Link` go with every answer of a
legacy route. Who still calls them is counted by API key, or else by the family
of the client's User-Agent; both are bounded, whatever clients send.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time
from email.utils import format_datetime
from typing import Final

from aiohttp import hdrs
from multidict import istr

from proxy.settings import Settings

SUCCESSOR: Final = "/v1/completions"
"""What takes the place of the legacy routes, where the engine has it."""
OTHER: Final = "other"
NONE: Final = "none"
_DEPRECATION: Final = istr("Deprecation")
_SUNSET: Final = istr("Sunset")
_LOOKED_AT: Final = 512
"""Characters of a User-Agent that are looked at."""
_PRODUCT: Final = re.compile(r"[\w.-]+")

FAMILIES: Final = {
    "curl": "curl",
    "wget": "wget",
    "hf_hub": "huggingface_hub",
    "openai": "openai",
    "tritonclient": "tritonclient",
    "gevent-http-client-python": "tritonclient",
    "gevent-http-client": "tritonclient",
    "aiohttp": "aiohttp",
    "python-requests": "python-requests",
    "python-httpx": "python-httpx",
    "python-urllib": "python-urllib",
    "python-urllib3": "python-urllib",
    "go-http-client": "go",
    "okhttp": "okhttp",
    "apache-httpclient": "apache-httpclient",
    "apache-httpasyncclient": "apache-httpclient",
    "java-http-client": "java",
    "java": "java",
    "axios": "axios",
    "node-fetch": "node",
    "undici": "node",
    "node": "node",
    "reqwest": "rust",
    "hyper": "rust",
    "postmanruntime": "postman",
    "apache-jmeter": "jmeter",
    "apachebench": "apachebench",
    "k6": "k6",
    "mozilla": "browser",
}
"""Names of products in a User-Agent, in lower case, and what they are counted as."""


def family(user_agent: str | None) -> str:
    """What a client is counted as: one of `FAMILIES`, `other`, or `none` without a User-Agent."""
    if not user_agent:
        return NONE
    products = _PRODUCT.findall(user_agent[:_LOOKED_AT].lower())
    return next((FAMILIES[name] for name in products if name in FAMILIES), OTHER)


def headers(settings: Settings, *, successor: bool) -> tuple[tuple[str, str], ...]:
    """What the answers of legacy routes carry. `successor` says whether there is one here."""
    if settings.deprecation == "off":
        return ()
    found = [(_DEPRECATION, f"@{int(_midnight(settings.deprecation).timestamp())}")]
    if settings.sunset is not None:
        found.append((_SUNSET, format_datetime(_midnight(settings.sunset), usegmt=True)))
    if successor:
        found.append((hdrs.LINK, f'<{SUCCESSOR}>; rel="successor-version"'))
    if settings.deprecation_link is not None:
        found.append(
            (hdrs.LINK, f'<{settings.deprecation_link}>; rel="deprecation"; type="text/html"')
        )
    return tuple(found)


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)
