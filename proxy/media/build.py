"""The desk for media, from the settings."""

from __future__ import annotations

import logging

from proxy.crew import ALONE, Worker
from proxy.media.desk import DeskLimits, MediaDesk
from proxy.media.download import Downloader, FetchTimes, Resolve
from proxy.media.local import MediaRoot
from proxy.settings import Settings
from translators.media_bombs import DecodedLimits
from translators.media_urls import HostPolicy, parse_hosts, parse_networks

log = logging.getLogger(__name__)


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
    return HostPolicy(hosts, parse_networks(settings.media_private_networks))


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
