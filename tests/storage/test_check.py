from __future__ import annotations

import dataclasses
import errno

import pytest
from range_model import DIRECTORY, SMALL, Owner, fill, hand_owner

from storage.check import Finding, check_directory
from storage.format import GUARDED_BYTES, HEADER_BLOCK_BYTES, segment_name
from storage.scan import Scanner

PLAIN = dataclasses.replace(SMALL, segment_bytes=1 << 20)


def rolled(appends: int = 70, values: int = 1) -> Owner:
    owner = Owner(max_flush_ms=0.0)
    owner.create()
    for number in range(appends):
        owner.append(number % 3, b"x" * 60, *[b"y"] * values, producer_id=number % 5)
        owner.scheduler.advance(3)
    owner.scheduler.run_until_idle()
    assert len(owner.log.segments) >= 3
    return owner


def check(owner: Owner, directory: str = "") -> list[Finding]:
    before = owner.disk.changes
    findings = check_directory(owner.disk, directory)
    assert owner.disk.changes == before, "an inspection changed something"
    return findings


def test_sound_chain() -> None:
    owner = rolled()
    owner.disk.replace("meta", b"a file that is none of ours")
    findings = check(owner)
    assert [finding.status for finding in findings] == ["ok"] * len(owner.log.segments)
    assert [finding.sealed for finding in findings] == [True] * (len(findings) - 1) + [False]
    assert sum(finding.entries for finding in findings) == 70
    assert [finding.path for finding in findings] == [segment.path for segment in owner.log.segments]
    assert findings == check(owner, "topics")
    text = str(findings[0])
    assert text.startswith(f"{DIRECTORY}/{segment_name(1)}: ok (sealed, ")


def test_live_files_after_crashes_are_never_damaged() -> None:
    for seed in range(12):
        owner = Owner(seed=seed)
        owner.create()
        for _ in range(60):
            owner.random_step()
        owner.power_cut(seed)
        findings = check(owner)
        assert not any(finding.damaged for finding in findings)
        owner.recover()
        owner.scheduler.run_until_idle()
        reported = {cut.path for cut in owner.report.cuts}
        assert reported <= {finding.path for finding in findings if finding.status == "torn tail"}
        assert {finding.status for finding in check(owner)} == {"ok"}


def test_every_damaged_byte_of_a_sealed_segment_is_found() -> None:
    owner = rolled()
    segment = owner.log.segments[1]
    content = owner.disk.content(segment.path)
    for position in range(0, len(content) - 64, 31):
        if segment.end <= position < segment.end + GUARDED_BYTES:
            continue  # the end mark has done its duty
        owner.disk.overwrite(segment.path, position, bytes([content[position] ^ 2]))
        (finding,) = [finding for finding in check(owner) if finding.path == segment.path]
        assert finding.damaged, position
        assert finding.detail
        owner.disk.overwrite(segment.path, position, content[position : position + 1])
    assert not any(finding.damaged for finding in check(owner))


def test_torn_tail_and_hole_in_an_active_segment() -> None:
    owner = Owner(config=PLAIN, max_flush_ms=0.0)
    owner.create()
    for number in range(6):
        owner.wait_durable(number % 3, owner.append(number % 3, b"x" * 60))
        owner.scheduler.run_ready()
    segment = owner.log.active
    entries = list(Scanner(segment.file(), segment.header, HEADER_BLOCK_BYTES, segment.end))
    owner.disk.overwrite(segment.path, segment.end, b"half an entry")
    (finding,) = check(owner)
    assert (finding.status, finding.position, finding.entries) == ("torn tail", segment.end, 6)
    assert "13 bytes" in str(finding)
    assert not finding.damaged
    owner.disk.overwrite(segment.path, entries[2].position, bytes(8))
    (finding,) = check(owner)
    assert (finding.status, finding.position, finding.entries) == ("corrupt", entries[2].position, 2)
    assert finding.damaged


def test_unfinished_footer() -> None:
    owner = hand_owner()
    fill(owner, lambda: bool(owner.asked))
    owner.append(0, b"the parent's last")
    owner.answer()
    owner.scheduler.run_until(lambda: owner.log._roller.state == "WRITING")
    findings = check(owner)
    assert [finding.status for finding in findings] == ["unfinished footer", "ok"]


def test_gap_between_segments() -> None:
    owner = rolled(110)
    assert owner.log.segments[2].state == "SEALED"
    owner.disk.remove(owner.log.segments[1].path)
    # The third may begin anywhere, since retention takes parents; but what comes before the hole shows it.
    findings = check(owner)
    assert [finding.damaged for finding in findings] == [True] + [False] * (len(findings) - 1)
    assert "the file that continues it is absent" in findings[0].detail


def test_segments_that_do_not_fit_together() -> None:
    owner, other = rolled(110), rolled(110, values=2)
    path = owner.log.segments[2].path
    owner.disk.replace(path, other.disk.content(path))
    findings = check(owner)
    assert [finding.path for finding in findings if finding.damaged] == [path]
    assert "starts at offset" in findings[2].detail


def test_child_that_a_start_would_cut() -> None:
    owner = hand_owner()
    fill(owner, lambda: bool(owner.asked))
    owner.log.request_flush()
    owner.scheduler.run_until_idle()
    parent = f"{DIRECTORY}/{segment_name(1)}"
    owner.disk.flush_delay_ms = lambda path: 1e6 if path == parent else 0.0
    owner.append(0, b"lost")
    owner.answer()
    owner.append(0, b"without its predecessor")
    owner.scheduler.run_ready()
    owner.power_cut(0, keep=lambda path: "none" if path == parent else "all")  # type: ignore[arg-type]
    findings = check(owner)
    assert [finding.status for finding in findings] == ["ok", "torn tail"]
    assert "a start cuts it here" in findings[1].detail
    owner.recover()
    assert owner.report.cuts[0].position == findings[1].position


def test_files_that_are_no_segments_inside() -> None:
    owner = rolled()
    path = owner.log.segments[0].path
    owner.disk.replace(path, b"not a segment")
    findings = check(owner)
    assert findings[0].damaged
    assert findings[0].size_bytes == 13
    assert not any(finding.damaged for finding in findings[1:])


def test_empty_folder_has_no_findings() -> None:
    owner = Owner()
    assert check(owner) == []


def test_unreadable_file_is_an_error() -> None:
    owner = rolled()
    owner.disk.fail("read", error=errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        check_directory(owner.disk)
