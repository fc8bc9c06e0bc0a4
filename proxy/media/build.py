"""The desk for media, from the settings."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Final

from proxy.crew import ALONE, Worker
from proxy.media.desk import DeskLimits, MediaDesk
from proxy.media.download import Downloader, FetchTimes
from proxy.media.local import MediaRoot
from proxy.media.look_ups import Resolve
from proxy.settings import Settings
from translators.media_bombs import DecodedLimits
from translators.media_urls import (
    HostPolicy,
    MediaRefused,
    literal_address,
    parse_hosts,
    parse_networks,
)

log = logging.getLogger(__name__)

_DIRECTORIES: Final = {"media_root": os.X_OK, "media_spool_dir": os.W_OK | os.X_OK}
"""Settings that name a directory, and what must be possible there."""


def missing_directory(settings: Settings) -> str | None:
    """What is wrong with a directory that the operator has named; None when nothing is.

    The default root may be missing: most models take no media.
    """
    for name, access in _DIRECTORIES.items():
        path = getattr(settings, name)
        if name not in settings.model_fields_set or path is None:
            continue
        if not Path(path).is_dir() or not os.access(path, access):
            return f"{name}: {path} is no directory that the gateway can use"
    return None


def host_policy(settings: Settings) -> HostPolicy:
    """Where media may come from (contract §6 and §8)."""
    listed = settings.allowed_media_domains
    hosts: frozenset[str] | None = parse_hosts(listed or "")
    if settings.media_from_any_host:
        if listed is None and settings.rules.media_open_by_default:
            hosts = None
        else:
            log.warning(
                "media_from_any_host has no effect: it is for the server contract without "
                "allowed_media_domains"
            )
    policy = HostPolicy(hosts, parse_networks(settings.media_private_networks))
    for host in sorted(hosts or ()):
        _warn_about_inner(policy, host)
    return policy


def _warn_about_inner(policy: HostPolicy, host: str) -> None:
    try:
        address = literal_address(f"[{host}]" if ":" in host else host)
        if address is not None:
            policy.check_address(address)
    except MediaRefused:
        log.warning(
            "allowed_media_domains lists %s, which is no public address: nothing is fetched from "
            "it unless media_private_networks names its network",
            host,
        )


def media_desk(
    settings: Settings, resolve: Resolve | None = None, worker: Worker = ALONE
) -> MediaDesk:
    """Everything that fetches media. Opens nothing yet.

    `resolve` takes the place of the system's resolver, for tests.
    """
    policy = host_policy(settings)
    times = FetchTimes(settings.media_connect_timeout, settings.media_read_timeout)
    limits = DeskLimits(
        concurrency=worker.part(settings.media_concurrency),
        total_time=settings.media_total_timeout,
        memory=settings.media_memory_limit,
        directory=settings.media_spool_dir,
        decoded=DecodedLimits(settings.media_max_pixels, settings.media_max_seconds),
    )
    downloader = Downloader(policy, times, trust_env=settings.media_proxy_from_env, resolve=resolve)
    return MediaDesk(policy, MediaRoot(settings.media_root), downloader, limits)
