"""A store in memory; for tests and for measuring what durability costs."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, nullcontext

from feddbp_server.store.interface import (
    AggregateRecord,
    ClientRecord,
    ReportRecord,
    Store,
    SumRecord,
    UploadRecord,
    refuse_other_run,
)


class MemoryStore(Store):
    """Dictionaries. Transactions do nothing: no state survives a crash anyway."""

    def __init__(self) -> None:
        self._run: tuple[str, str] | None = None
        self._snapshot: str | None = None
        self._new_members: set[int] = set()
        self._clients: dict[int, ClientRecord] = {}
        self._uploads: dict[tuple[int, int], tuple[UploadRecord, bytes]] = {}
        self._reports: dict[tuple[int, int], ReportRecord] = {}
        self._sum_records: dict[tuple[int, str, int | None], SumRecord] = {}
        self._aggregate: AggregateRecord | None = None

    def open_run(self, run_id: str, config_json: str) -> str:
        if self._run is None:
            self._run = (run_id, config_json)
        elif self._run[1] != config_json and self._clients:
            refuse_other_run(stored=self._run[1], given=config_json)
        elif self._run[1] != config_json:
            self._run, self._snapshot = (run_id, config_json), None
        return self._run[0]

    def stored_config(self) -> str | None:
        return self._run[1] if self._run is not None and self._clients else None

    def replace_config(self, config_json: str) -> None:
        assert self._run is not None
        self._run = (self._run[0], config_json)

    def save_options(self, options_json: str) -> None:
        pass

    def transaction(self) -> AbstractContextManager[None]:
        return nullcontext()

    def snapshot(self) -> str | None:
        return self._snapshot

    def save_snapshot(self, snapshot: str) -> None:
        self._snapshot = snapshot

    def add_new_member(self, client_id: int) -> None:
        self._new_members.add(client_id)

    def new_members(self) -> frozenset[int]:
        return frozenset(self._new_members)

    def forget_new_members(self, client_ids: Collection[int]) -> None:
        self._new_members.difference_update(client_ids)

    def touch(self) -> None:
        pass

    def clients(self) -> list[ClientRecord]:
        return [self._clients[client_id] for client_id in sorted(self._clients)]

    def save_client(self, record: ClientRecord) -> None:
        self._clients[record.client_id] = record

    def save_upload(self, record: UploadRecord, body: bytes) -> None:
        self._uploads[record.round, record.client_id] = (record, body)

    def uploads(self, round_number: int) -> list[UploadRecord]:
        return [self._uploads[key][0] for key in sorted(self._uploads) if key[0] == round_number]

    def upload(self, client_id: int, round_number: int) -> UploadRecord | None:
        found = self._uploads.get((round_number, client_id))
        return found[0] if found else None

    def last_upload_before(self, client_id: int, round_number: int) -> UploadRecord | None:
        rounds = [number for number, owner in self._uploads if owner == client_id and number < round_number]
        return self._uploads[max(rounds), client_id][0] if rounds else None

    def upload_body(self, record: UploadRecord, limit: int | None = None) -> bytes:
        return self._uploads[record.round, record.client_id][1][:limit]

    def forget_upload(self, client_id: int, round_number: int) -> None:
        self._uploads.pop((round_number, client_id), None)

    def forget_superseded_uploads(self, before_round: int) -> None:
        newest = {owner: number for number, owner in sorted(self._uploads)}
        for number, owner in list(self._uploads):
            if number < before_round and number < newest[owner]:
                del self._uploads[number, owner]

    def forget_from(self, round_number: int) -> None:
        self._uploads = {key: kept for key, kept in self._uploads.items() if key[0] < round_number}
        self._reports = {key: kept for key, kept in self._reports.items() if key[0] < round_number}

    def tidy(self) -> None:
        pass

    def save_report(self, record: ReportRecord) -> bool:
        is_first = (record.round, record.client_id) not in self._reports
        self._reports.setdefault((record.round, record.client_id), record)
        return is_first

    def reports(self, from_round: int = 0) -> Iterator[ReportRecord]:
        return iter([self._reports[key] for key in sorted(self._reports) if key[0] >= from_round])

    def save_sum_record(self, record: SumRecord) -> bytes:
        return self._sum_records.setdefault((record.round, record.step, record.client_id), record).body

    def sum_records(self, round_number: int) -> list[SumRecord]:
        return [record for record in self._sum_records.values() if record.round == round_number]

    def forget_sum_records(self, before_round: int) -> None:
        self._sum_records = {key: kept for key, kept in self._sum_records.items() if key[0] >= before_round}

    def aggregate(self) -> AggregateRecord | None:
        return self._aggregate

    def save_aggregate(self, record: AggregateRecord) -> None:
        self._aggregate = record

    def close(self) -> None:
        pass
