"""A data folder with a damaged file: the start refuses with a message, or what is served is what was there, or a reader
hears of the damage. On demand, more of it: ./run fuzz folder --seconds N."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from fuzz.data_folder import REFUSALS, FolderNode, Image, build_images, damaged, outcome, read_all

SEEDS = 300


@pytest.fixture(scope="module")
def images() -> dict[str, Image]:
    return {image.name: image for image in build_images()}


def test_damage_is_refused_or_does_no_harm(images: dict[str, Image]) -> None:
    found: Counter[str] = Counter()
    for seed in range(SEEDS):
        chance = random.Random(seed)
        image = chance.choice(list(images.values()))
        files, what = damaged(image, chance)
        try:
            found[outcome(image, files)] += 1
        except Exception as error:
            raise AssertionError(f"seed {seed}, the {image.name} folder, {what}") from error
    assert set(found) <= {"refused", "served", "unreadable", "cut"}
    assert min(found["refused"], found["served"], found["unreadable"]) > SEEDS // 40, (
        "or the seeds show nothing"
    )


def used(data: bytes) -> int:
    return len(data.rstrip(b"\0"))


def active_segments(image: Image) -> list[str]:
    return [path for path, data in image.files.items() if path.endswith(".seg") and used(data) < len(data)]


@pytest.mark.parametrize("name", ["clean", "killed", "power cut", "checkpointed"])
def test_the_last_record_flushed_long_ago_is_never_cut_away(images: dict[str, Image], name: str) -> None:
    """It is the end of its file, and no later entry says that it was durable."""
    image = images[name]
    segments = active_segments(image)
    assert segments
    for path in segments:
        data = bytearray(image.files[path])
        data[used(data) - 1] ^= 1
        assert outcome(image, image.files | {path: bytes(data)}) in ("refused", "unreadable")
        assert outcome(image, image.files | {path: bytes(data[: used(data) - 1])}) in (
            "refused",
            "unreadable",
        )


@pytest.mark.parametrize("name", ["clean", "killed", "power cut", "checkpointed"])
def test_a_metadata_log_that_was_cut_short_is_refused(images: dict[str, Image], name: str) -> None:
    """What its frames said of its durability went with them."""
    image = images[name]
    path = max(path for path in image.files if path.startswith("metadata/log-"))
    for size in range(4096, used(image.files[path]) - 60, 97):
        with pytest.raises(REFUSALS):
            FolderNode(image.files | {path: image.files[path][:size]}, boot=image.boot, **image.settings)


def test_topics_are_not_removed_because_the_metadata_store_is_gone(images: dict[str, Image]) -> None:
    image = images["killed"]
    for gone in (("metadata/",), ("metadata/", "durable")):
        files = {path: data for path, data in image.files.items() if not path.startswith(gone)}
        with pytest.raises(REFUSALS, match=r"missing|no file is left"):
            FolderNode(files)


def test_a_damaged_or_absent_note_says_nothing(images: dict[str, Image]) -> None:
    image = images["clean"]
    note = image.files["durable"]
    others = {path: data for path, data in image.files.items() if path != "durable"}
    for files in (others, others | {"durable": b""}, others | {"durable": note.replace(b"0", b"9", 1)}):
        assert read_all(FolderNode(files)) == image.truth
