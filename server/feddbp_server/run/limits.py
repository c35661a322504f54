"""Every bound on what callers may make the server hold, do at once or wait for."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits in force; those an operator may set are options in `LimitsConfig`, which makes this."""

    upload_bytes: int = 64 << 20
    """Of one upload."""
    bytes_in_flight: int = 512 << 20
    """Of all uploads that are being received; bounds what they can make the server hold in memory.

    An upload takes up to three times its bytes: as pieces and as their join, or as that and widened to float32.
    """
    header_wait: timedelta = timedelta(seconds=10)
    """For a request or an upload's header: until then the caller is unknown."""
    chunk_wait: timedelta = timedelta(seconds=30)
    """Between two chunks of an upload."""
    discard_wait: timedelta = timedelta(seconds=1)
    """Between two chunks of an upload that was refused; the rest of it is read and dropped, since a client that is cut
    off while it sends does not receive the reason."""
    discard_bytes: int = 256 << 20
    """Of what is dropped of one upload: more than the largest that is admitted, since a larger one is refused, too."""
    discard_total: timedelta = timedelta(seconds=30)
    """For all of what is dropped of one upload."""
    cached_upload_bytes: int = 256 << 20
    """Of uploads kept in memory until their round closes; the rest is read from the store."""

    streams_per_session: int = 4
    """Event streams: one, and those of lost connections that were not noticed yet."""
    downloads_per_session: int = 4
    """As with event streams; each holds the bytes it sends."""
    pushed_states: int = 32
    """States that are sent with events at the same time; more wait, or are left to be downloaded."""
    pushed_state_bytes: int = 1 << 20
    """Of one of them: a larger one would hold up the events after it."""
    pushed_state_wait: timedelta = timedelta(seconds=2)
    """For one of them to be sent."""
    status_watchers: int = 64
    """Status streams of operators; each is sent the status of every client, again and again."""
    watched_events: int = 20_000
    """Events that a watcher of the run has not read yet; a slower one has to watch again."""
    status_interval: timedelta = timedelta(seconds=0.1)
    """Shortest time between two messages of a status stream; changes in between are sent together."""

    disconnection_wait: timedelta = timedelta(seconds=1)
    """Before a client whose event stream ended counts as lost, and before a finished server says for whom it waits."""

    message_bytes: int = 1 << 20
    """Of one message: a chunk has 256 KiB and every other message is smaller."""
    metadata_bytes: int = 16 << 10
    """Of a call's metadata, which holds a token at most."""
    streams_per_connection: int = 4096
    """Concurrent calls: a client needs a handful, and one process may be a thousand clients."""

    name_characters: int = 256
    """Of a name: an architecture, a device, an inference rule, a loss term."""
    text_characters: int = 500
    """Of a reason or cause; longer texts are cut off."""
    report_entries: int = 64
    """Accuracies or loss terms in one report."""
    samples: int = 2**31 - 1
    """Training or test samples of one client."""
    reported_bytes: int = 2**40
    """Of one client in one round: the sums over all clients and rounds stay within the status's integers."""

    incidents: int = 20
    """In the status: the newest ones."""
    incidents_per_client: int = 3
    """So that no client can displace every other incident."""
    audited_refusals: int = 1000
    """Refusals written to the audit log at once, or any caller could fill the disk; the rest are only counted."""
    audited_refusals_per_second: float = 20.0
    audited_client_events: int = 20
    """The same for each kind of event that a client can repeat, and for each client."""
    audited_client_events_per_second: float = 0.1

    scrapes: int = 8
    """Concurrent scrapes of the metrics, which need no authentication; each takes a thread."""
    scrape_wait: timedelta = timedelta(seconds=10)
    """For a scraper that sends or receives nothing."""
    collect_wait: timedelta = timedelta(seconds=5)
    """For the event loop to collect the metrics of one scrape."""


DEFAULT_LIMITS: Final = Limits()
