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
    uploads_at_once: int = 64
    """Uploads that are being received and stored; the headers of more are answered once one of them is stored."""
    upload_wait: timedelta = timedelta(seconds=2)
    """For one of them to be stored, while none is; then more are admitted, up to `bytes_in_flight`."""
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

    sum_wait: timedelta = timedelta(seconds=30)
    """For clients that are silent in a step of a secure sum, once others have answered."""
    sum_hold: timedelta = timedelta(seconds=5)
    """Before a client that waits for a step is told to ask again; less than any client waits for an answer."""
    sum_steps_per_client: int = 4
    """Calls of one client that wait for a step: one, and those of lost connections that were not noticed yet."""

    streams_per_session: int = 4
    """Event streams: one, and those of lost connections that were not noticed yet."""
    downloads_per_client: int = 4
    """Of all its sessions; each holds the bytes it sends."""
    joins_per_client: int = 8
    """At the same time; they wait for each other."""
    joins_at_once: int = 256
    """Of all clients; more are told when to come back."""
    join_return: timedelta = timedelta(seconds=30)
    """The latest time that they are told."""
    replies: int = 4
    """Personal states that are computed at the same time, one for each client."""
    stalled_wait: timedelta = timedelta(seconds=30)
    """For a caller to take the next message of a stream that is sent to it."""
    pushed_states: int = 32
    """States that are sent with events at the same time; more wait, or are left to be downloaded."""
    pushed_state_bytes: int = 1 << 20
    """Of one of them: a larger one would hold up the events after it."""
    pushed_state_wait: timedelta = timedelta(seconds=2)
    """For one of them to be sent, while none is."""
    status_watchers: int = 64
    """Status streams of operators; each is sent the status of every client, again and again."""
    watched_events: int = 20_000
    """Events that a watcher of the run has not read yet; a slower one has to watch again."""
    status_interval: timedelta = timedelta(seconds=0.1)
    """Shortest time between two messages of a status stream; changes in between are sent together."""

    disconnection_wait: timedelta = timedelta(seconds=1)
    """Before a client whose event stream ended counts as lost, and before a finished server says for whom it waits."""

    lost_after: timedelta = timedelta(minutes=5)
    """Before an operator is told of a client that is disconnected."""

    message_bytes: int = 384 << 10
    """Of one message: a chunk has 256 KiB and every other message is smaller, but for those that list classes."""
    bytes_per_class: int = 12
    """More of a message for each class of the run, for its id and its number of samples."""
    request_bytes: int = 64 << 10
    """Of a single request, and `bytes_per_class` more: it has names and numbers only."""
    report_bytes: int = 192 << 10
    """Of a report, which may have `report_entries` names."""
    metadata_bytes: int = 16 << 10
    """Of a call's metadata, which holds a token at most."""
    streams_per_connection: int = 4096
    """Concurrent calls: a client needs a handful, and one process may be a thousand clients."""

    pending_calls: int = 1000
    """Calls that have arrived and were not begun yet, in a small run."""
    pending_calls_per_client: int = 4
    """The same in a larger one: every client may call when a round opens."""

    name_characters: int = 256
    """Of a name: an architecture, a device, an inference rule, a loss term."""
    text_characters: int = 500
    """Of a reason or cause; longer texts are cut off."""
    report_entries: int = 64
    """Accuracies or loss terms in one report."""
    samples: int = 2**31 - 1
    """Training or test samples of one client."""
    reported_time: timedelta = timedelta(days=366)
    """Of one part of one client's round."""
    reported_bytes: int = 2**40
    """Of one client in one round: the sums over all clients and rounds stay within the status's integers."""

    incidents: int = 20
    """In the status: the newest ones."""
    incidents_per_client: int = 3
    """So that no client can displace every other incident."""
    incidents_of_strangers: int = 5
    """Of all callers together that have not authenticated where others do."""
    audited_refusals: int = 100
    """Refusals of one caller, by its name or else its host, that are written to the audit log at once; the rest are
    only counted, or any caller could fill the disk."""
    audited_refusals_per_second: float = 0.1
    audited_strangers: int = 1000
    """The same for all callers together that have not authenticated: they take nothing from those that have."""
    audited_strangers_per_second: float = 1.0
    audited_hosts: int = 1000
    """Hosts with an allowance of their own; those beyond share one."""
    audit_bytes: int = 16 << 20
    """Of the audit log, which is then continued in a new file."""
    audit_files: int = 4
    """Older files of the audit log that are kept."""
    audited_client_events: int = 20
    """The same for each kind of event that a client can repeat, and for each client."""
    audited_client_events_per_second: float = 0.1

    scrapes: int = 8
    """Concurrent scrapes of the metrics, which need no authentication; each takes a thread."""
    scrape_turn: timedelta = timedelta(seconds=1)
    """After that a scrape has to make room for another one, if there are too many."""
    scrape_wait: timedelta = timedelta(seconds=10)
    """For a scraper that sends or receives nothing."""
    collect_wait: timedelta = timedelta(seconds=5)
    """For the event loop to collect the metrics of one scrape."""


DEFAULT_LIMITS: Final = Limits()
