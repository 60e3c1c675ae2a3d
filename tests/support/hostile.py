"""Files made to hurt whoever opens them: each is a recipe that writes what it needs, and the command that opens it.

A recipe gets a `Bench`: a folder with sound files beside which it puts its own. What runs code leaves a mark.
"""

import gzip
import io
import json
import os
import pickle
import re
import struct
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from minsharp.data.idx import FILES, IMAGES, LABELS, file_name
from minsharp.experiments.store import write_csv

Recipe = Callable[["Bench"], list[object]]
RECIPES: dict[str, Recipe] = {}
BOMBS: set[str] = set()
"""Those that would fill the memory."""
DEFUSED = "announce|overlap|directory|compressed|makes a|more than|too long|another name|at most|not belong|bytes, its"
"""What is said of them: the reason is what they are, not that they do not fit."""
MIB = 1 << 20
FACTORY = "tests.support.hostile:factory"
WEIGHTS = "data/weights/model_weights_config.json"


def recipe(function: Recipe) -> Recipe:
    RECIPES[function.__name__] = function
    return function


def bomb(function: Recipe) -> Recipe:
    BOMBS.add(function.__name__)
    return recipe(function)


def factory() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4)).double()


class Bomb:
    """Unpickling it leaves a mark."""

    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.system, (f"touch {self.mark}",)


@dataclass(frozen=True)
class Bench:
    folder: Path
    model: Path
    """A sound .pt2 file."""
    data: Path
    """Sound data for it."""

    @property
    def mark(self) -> Path:
        return self.folder / "mark"

    def write(self, name: str, content: bytes | str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def as_data(self, content: bytes, suffix: str = ".npz") -> list[object]:
        return ["measure", FACTORY, "--data", self.write(f"hostile{suffix}", content)]

    def as_weights(self, content: bytes, suffix: str = ".pt") -> list[object]:
        return ["measure", FACTORY, "--data", self.data, "--weights", self.write(f"hostile{suffix}", content)]

    def as_model(self, content: bytes) -> list[object]:
        return ["measure", self.write("hostile.pt2", content), "--data", self.data]

    def records(self) -> dict[str, bytes]:
        with zipfile.ZipFile(self.model) as archive:
            return {name: archive.read(name) for name in archive.namelist()}

    def tampered(self, change: Callable[[dict[str, bytes]], None], method: int = zipfile.ZIP_STORED) -> list[object]:
        """The sound model with changed records."""
        records = {name.partition("/")[2]: content for name, content in self.records().items()}
        before = dict(records)
        change(records)
        assert records != before or method
        return self.as_model(zipped({f"m/{name}": content for name, content in records.items()}, method))

    def with_json(self, record: str, change: Callable[[Any], Any]) -> list[object]:
        def edit(records: dict[str, bytes]) -> None:
            held = json.loads(records[record])
            changed = change(held)
            records[record] = json.dumps(held if changed is None else changed).encode()

        return self.tampered(edit)

    def with_meta(self, **meta: Any) -> list[object]:
        """Another description of the first weight."""
        return self.with_json(WEIGHTS, lambda config: config["config"]["0.weight"]["tensor_meta"].update(meta))


def zipped(records: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, content in records.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def npy(shape: tuple[int, ...], dtype: str = "<f8", content: bytes = b"", version: int = 1, text: str = "") -> bytes:
    """A .npy file whose header says anything."""
    header = text or repr({"descr": dtype, "fortran_order": False, "shape": shape})
    header = header + " " * (-(len(header) + 11) % 64) + "\n"
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H", len(header)) + header.encode() + content


def patched(archive: bytes, field: int, value: int, central: bool = True, size: str = "<L") -> bytes:
    """A number changed in the first entry of the directory, or in the words before the first member."""
    at = archive.index(b"PK\1\2" if central else b"PK\3\4") + field
    return archive[:at] + struct.pack(size, value) + archive[at + struct.calcsize(size) :]


def sound(name: str = "x.npy") -> bytes:
    return zipped({name: npy((2, 6), content=bytes(96))})


def state(suffix: str = ".pt") -> bytes:
    buffer = io.BytesIO()
    torch.save(factory().state_dict(), buffer)
    return buffer.getvalue()


def pt_records() -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(state())) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


# Data


@recipe
def npz_empty(bench: Bench) -> list[object]:
    return bench.as_data(b"")


@recipe
def npz_of_noise(bench: Bench) -> list[object]:
    return bench.as_data(np.random.default_rng(0).bytes(5000))


@recipe
def npz_cut_in_half(bench: Bench) -> list[object]:
    return bench.as_data(sound()[: len(sound()) // 2])


@recipe
def npz_without_its_end(bench: Bench) -> list[object]:
    return bench.as_data(sound()[:-1])


@recipe
def npz_after_a_program(bench: Bench) -> list[object]:
    return bench.as_data(b"#!/bin/sh\ntouch mark\n" + sound())


@recipe
def npz_with_a_pickle(bench: Bench) -> list[object]:
    buffer = io.BytesIO()
    np.savez(buffer, x=np.array([Bomb(bench.mark)], dtype=object))
    return bench.as_data(buffer.getvalue())


@recipe
def npz_with_a_pickle_that_says_it_is_numbers(bench: Bench) -> list[object]:
    return bench.as_data(zipped({"x.npy": npy((1,), content=pickle.dumps(Bomb(bench.mark)))}))


@recipe
def npz_with_code_in_a_header(bench: Bench) -> list[object]:
    text = f"__import__('os').system('touch {bench.mark}')"
    return bench.as_data(zipped({"x.npy": npy((), text=text)}))


@recipe
def npz_with_a_nested_header(bench: Bench) -> list[object]:
    return bench.as_data(zipped({"x.npy": npy((), text="(" * 9000)}))


@recipe
def npz_of_text(bench: Bench) -> list[object]:
    return bench.as_data(zipped({"x.npy": npy((2,), "<U4", bytes(32))}))


@recipe
def npz_of_records(bench: Bench) -> list[object]:
    header = repr({"descr": [("a", "<f8"), ("b", "<i4")], "fortran_order": False, "shape": (1,)})
    return bench.as_data(zipped({"x.npy": npy((), text=header, content=bytes(12))}))


@recipe
def npz_in_the_other_order_of_bytes(bench: Bench) -> list[object]:
    return bench.as_data(zipped({"x.npy": npy((2, 6), ">f8", bytes(96))}))


@recipe
def npz_of_a_later_version(bench: Bench) -> list[object]:
    return bench.as_data(zipped({"x.npy": npy((2, 6), content=bytes(96), version=9)}))


@recipe
def npz_with_a_negative_shape(bench: Bench) -> list[object]:
    return bench.as_data(zipped({"x.npy": npy((-1, 6), content=bytes(96))}))


@recipe
def npz_with_a_shape_that_overflows(bench: Bench) -> list[object]:
    return bench.as_data(zipped({"x.npy": npy((1 << 62, 4), content=bytes(96))}))


@bomb
def npz_that_announces_more_than_it_holds(bench: Bench) -> list[object]:
    return bench.as_data(zipped({"x.npy": npy((1 << 27, 6), content=bytes(96))}))


@bomb
def npz_that_holds_more_than_its_header_says(bench: Bench) -> list[object]:
    return bench.as_data(zipped({"x.npy": npy((2, 6), content=bytes(512 * MIB))}, zipfile.ZIP_DEFLATED))


@bomb
def npz_that_unpacks_to_more_than_its_directory_says(bench: Bench) -> list[object]:
    whole = npy((2, 6), content=bytes(256 * MIB))
    short = npy((2, 6), content=bytes(96))
    archive = patched(zipped({"x.npy": whole}, zipfile.ZIP_DEFLATED), 24, len(short))
    return bench.as_data(patched(archive, 16, zlib.crc32(short)))


@bomb
def npz_whose_directory_says_more_than_it_unpacks_to(bench: Bench) -> list[object]:
    header = npy((1 << 25, 1))
    archive = zipped({"x.npy": header + os.urandom(1 << 19)}, zipfile.ZIP_DEFLATED)
    return bench.as_data(patched(archive, 24, len(header) + (1 << 28)))


@bomb
def npz_packed_more_tightly_than_anything_can_be(bench: Bench) -> list[object]:
    header = npy((1 << 30, 1))
    archive = zipped({"x.npy": header + bytes(1000)}, zipfile.ZIP_DEFLATED)
    return bench.as_data(patched(archive, 24, 0xF0000000))


@bomb
def npz_packed_with_lzma(bench: Bench) -> list[object]:
    return bench.as_data(zipped({"x.npy": npy((1 << 24, 1), content=bytes(128 * MIB))}, zipfile.ZIP_LZMA))


@recipe
def npz_packed_with_bzip2(bench: Bench) -> list[object]:
    return bench.as_data(zipped({"x.npy": npy((1 << 10, 1), content=bytes(8192))}, zipfile.ZIP_BZIP2))


@recipe
def npz_encrypted(bench: Bench) -> list[object]:
    return bench.as_data(patched(patched(sound(), 8, 1, size="<H"), 6, 1, central=False, size="<H"))


@recipe
def npz_with_a_wrong_checksum(bench: Bench) -> list[object]:
    return bench.as_data(patched(sound(), 16, 12345))


@recipe
def npz_with_two_names_for_one_member(bench: Bench) -> list[object]:
    archive = sound()
    return bench.as_data(archive.replace(b"x.npy", b"y.npy", 1))


@recipe
def npz_with_one_name_twice(bench: Bench) -> list[object]:
    archive = zipped({"x.npy": npy((2, 6), content=bytes(96)), "z.npy": npy((2, 6), content=bytes(96))})
    return bench.as_data(archive.replace(b"z.npy", b"x.npy"))


@bomb
def npz_with_members_that_overlap(bench: Bench) -> list[object]:
    """Many entries of the directory for one stretch of the file, as zip bombs have it."""
    names = [f"x{i:04d}.npy" for i in range(1000)]
    content = npy((1 << 16, 1), content=bytes(512 << 10))
    first = zipped({names[0]: content}, zipfile.ZIP_DEFLATED)
    at, end = first.index(b"PK\1\2"), first.index(b"PK\5\6")
    entry = first[at:end]
    directory = b"".join(entry.replace(names[0].encode(), name.encode()) for name in names)
    tail = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, len(names), len(names), len(directory), at, 0)
    return bench.as_data(first[:at] + directory + tail)


@bomb
def npz_whose_member_reaches_over_the_next(bench: Bench) -> list[object]:
    archive = zipped({"x0.npy": npy((2, 6), content=bytes(96)), "x1.npy": npy((2, 6), content=bytes(96))})
    return bench.as_data(patched(patched(archive, 20, 400), 24, 400))


@bomb
def npz_with_a_member_inside_another(bench: Bench) -> list[object]:
    """Each is sound by itself; layer upon layer, they would hold more than the file."""
    inner = zipped({"x1.npy": npy((2, 6), content=bytes(96))})
    local, entry = inner[: inner.index(b"PK\1\2")], inner[inner.index(b"PK\1\2") : inner.index(b"PK\5\6")]
    outer = zipped({"x0.npy": npy((len(local),), "|u1", local)})
    at = outer.index(b"PK\1\2", len(local))
    entry = entry[:42] + struct.pack("<L", outer.index(local)) + entry[46:]
    directory = outer[at : outer.index(b"PK\5\6", at)] + entry
    tail = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 2, 2, len(directory), at, 0)
    return bench.as_data(outer[:at] + directory + tail)


@bomb
def npz_with_a_directory_without_end(bench: Bench) -> list[object]:
    entry = zipped({"x.npy": b""})
    at, end = entry.index(b"PK\1\2"), entry.index(b"PK\5\6")
    directory = entry[at:end] * 400_000
    tail = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, len(directory), at, 0)
    return bench.as_data(entry[:at] + directory + tail)


@recipe
def npz_that_climbs_out(bench: Bench) -> list[object]:
    return bench.as_data(sound("../../x.npy"))


@recipe
def npz_from_the_root(bench: Bench) -> list[object]:
    return bench.as_data(sound("/etc/x.npy"))


@recipe
def npz_with_a_name_that_turns_around(bench: Bench) -> list[object]:
    return bench.as_data(sound("\u202ex\x1b[31m.npy"))


@recipe
def npz_with_a_link(bench: Bench) -> list[object]:
    info = zipfile.ZipInfo("x.npy")
    info.external_attr = 0o120777 << 16
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(info, "/etc/passwd")
    return bench.as_data(buffer.getvalue())


@recipe
def npz_with_another_file(bench: Bench) -> list[object]:
    return bench.as_data(zipped({"x.npy": npy((2, 6), content=bytes(96)), "setup.py": b"raise SystemExit"}))


@recipe
def npz_that_is_a_folder(bench: Bench) -> list[object]:
    (bench.folder / "folder.npz").mkdir()
    return ["measure", FACTORY, "--data", bench.folder / "folder.npz"]


@recipe
def npz_with_a_name_too_long(bench: Bench) -> list[object]:
    return ["measure", FACTORY, "--data", bench.folder / ("x" * 5000 + ".npz")]


# Weights


@recipe
def pickle_with_code(bench: Bench) -> list[object]:
    buffer = io.BytesIO()
    torch.save({"0.weight": Bomb(bench.mark)}, buffer)
    return bench.as_weights(buffer.getvalue())


@recipe
def pickle_without_an_archive(bench: Bench) -> list[object]:
    return bench.as_weights(pickle.dumps(Bomb(bench.mark)), ".pth")


@recipe
def pickle_in_the_old_format(bench: Bench) -> list[object]:
    buffer = io.BytesIO()
    torch.save(Bomb(bench.mark), buffer, _use_new_zipfile_serialization=False)
    return bench.as_weights(buffer.getvalue())


@recipe
def pickle_by_the_stack(bench: Bench) -> list[object]:
    code = pickle.dumps(Bomb(bench.mark), protocol=4)
    return bench.as_weights(zipped({**pt_records(), "archive/data.pkl": code}))


@recipe
def pickle_nested_deeply(bench: Bench) -> list[object]:
    return bench.as_weights(
        zipped({**pt_records(), "archive/data.pkl": b"\x80\x02" + b"]" * 99999 + b"a" * 99998 + b"."})
    )


@bomb
def pickle_of_lists_without_end(bench: Bench) -> list[object]:
    return bench.as_weights(zipped({**pt_records(), "archive/data.pkl": b"\x80\x02" + b"]" * (6 * MIB) + b"."}))


@bomb
def pickle_that_makes_memory(bench: Bench) -> list[object]:
    code = b"\x80\x02}X\x01\x00\x00\x00ac__builtin__\nbytearray\n(J\x00\x00\x00\x30tRs."
    return bench.as_weights(zipped({**pt_records(), "archive/data.pkl": code}))


@bomb
def pickle_in_the_old_format_that_makes_memory(bench: Bench) -> list[object]:
    buffer = io.BytesIO()
    torch.save({}, buffer, _use_new_zipfile_serialization=False)
    code = b"\x80\x02}X\x01\x00\x00\x00ac__builtin__\nbytearray\n(J\x00\x00\x00\x30tRs."
    return bench.as_weights(buffer.getvalue().replace(pickle.dumps({}, protocol=2), code, 1))


@recipe
def pickle_of_numbers_that_nobody_wrote(bench: Bench) -> list[object]:
    code = b"\x80\x02}X\x01\x00\x00\x00actorch\nFloatTensor\n(K\x05tRs."
    return bench.as_weights(zipped({**pt_records(), "archive/data.pkl": code}))


@bomb
def weights_packed(bench: Bench) -> list[object]:
    """torch unpacks what it never packs: 256 MiB for a model of a few numbers."""
    buffer = io.BytesIO()
    torch.save({"x": torch.zeros(32 * MIB, dtype=torch.float64)}, buffer)
    with zipfile.ZipFile(buffer) as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    return bench.as_weights(zipped(records, zipfile.ZIP_DEFLATED))


@bomb
def weights_that_announce_more_than_they_hold(bench: Bench) -> list[object]:
    buffer = io.BytesIO()
    torch.save({"x": torch.zeros(64 * MIB)}, buffer)
    with zipfile.ZipFile(buffer) as archive:
        records = {
            name: archive.read(name)[:64] if "/data/" in name else archive.read(name) for name in archive.namelist()
        }
    return bench.as_weights(zipped(records))


@recipe
def weights_whose_record_is_larger(bench: Bench) -> list[object]:
    return bench.as_weights(zipped({**pt_records(), "archive/data/0": bytes(10 * MIB)}))


@recipe
def weights_without_a_pickle(bench: Bench) -> list[object]:
    return bench.as_weights(zipped({name: c for name, c in pt_records().items() if not name.endswith(".pkl")}))


@recipe
def weights_cut(bench: Bench) -> list[object]:
    return bench.as_weights(state()[:-100])


@recipe
def weights_that_are_a_list(bench: Bench) -> list[object]:
    buffer = io.BytesIO()
    torch.save([torch.zeros(3)], buffer)
    return bench.as_weights(buffer.getvalue())


@recipe
def weights_with_names_that_obey(bench: Bench) -> list[object]:
    buffer = io.BytesIO()
    torch.save({"\x1b[2J\u202e=cmd": torch.zeros(3)}, buffer)
    return bench.as_weights(buffer.getvalue())


@recipe
def weights_that_are_a_folder(bench: Bench) -> list[object]:
    (bench.folder / "w.pt").mkdir()
    return ["measure", FACTORY, "--data", bench.data, "--weights", bench.folder / "w.pt"]


def safetensors(header: object, content: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + content


@recipe
def safetensors_with_an_endless_header(bench: Bench) -> list[object]:
    return bench.as_weights(struct.pack("<Q", 1 << 62) + b"{}", ".safetensors")


@recipe
def safetensors_shorter_than_its_header(bench: Bench) -> list[object]:
    return bench.as_weights(struct.pack("<Q", 5000) + b"{}", ".safetensors")


@recipe
def safetensors_that_announce_more_than_they_hold(bench: Bench) -> list[object]:
    entry = {"dtype": "F64", "shape": [1 << 40], "data_offsets": [0, 8 << 40]}
    return bench.as_weights(safetensors({"0.weight": entry}, bytes(64)), ".safetensors")


@recipe
def safetensors_that_overlap(bench: Bench) -> list[object]:
    entry = {"dtype": "F64", "shape": [8], "data_offsets": [0, 64]}
    return bench.as_weights(safetensors({"0.weight": entry, "0.bias": entry}, bytes(64)), ".safetensors")


@recipe
def safetensors_nested_deeply(bench: Bench) -> list[object]:
    return bench.as_weights(safetensors(b'{"a":' * 50_000), ".safetensors")


@recipe
def safetensors_of_noise(bench: Bench) -> list[object]:
    return bench.as_weights(np.random.default_rng(1).bytes(3000), ".safetensors")


@bomb
def safetensors_of_names_without_end(bench: Bench) -> list[object]:
    header = (
        b"{" + b",".join(b'"%d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}' % i for i in range(500_000)) + b"}"
    )
    return bench.as_weights(safetensors(header), ".safetensors")


@recipe
def safetensors_as_data_cut(bench: Bench) -> list[object]:
    entry = {"dtype": "F64", "shape": [2, 6], "data_offsets": [0, 96]}
    return bench.as_data(safetensors({"x": entry}, bytes(50)), ".safetensors")


# Models


@recipe
def model_cut(bench: Bench) -> list[object]:
    return bench.as_model(bench.model.read_bytes()[:3000])


@recipe
def model_of_text(bench: Bench) -> list[object]:
    return bench.as_model(b"import os\nos.system('touch mark')\n")


@recipe
def model_that_is_a_folder(bench: Bench) -> list[object]:
    (bench.folder / "m.pt2").mkdir()
    return ["measure", bench.folder / "m.pt2", "--data", bench.data]


@recipe
def model_packed(bench: Bench) -> list[object]:
    return bench.tampered(lambda records: None, zipfile.ZIP_DEFLATED)


@recipe
def model_in_two_folders(bench: Bench) -> list[object]:
    return bench.as_model(zipped({**bench.records(), "other/file": b""}))


@recipe
def model_in_the_other_order_of_bytes(bench: Bench) -> list[object]:
    return bench.tampered(lambda records: records.update(byteorder=b"big"))


@recipe
def model_with_compiled_code(bench: Bench) -> list[object]:
    return bench.tampered(lambda records: records.update({"data/aotinductor/model/code.so": b"\x7fELF"}))


@recipe
def model_with_a_pickled_weight(bench: Bench) -> list[object]:
    def change(config: Any) -> None:
        config["config"]["0.weight"].update(use_pickle=True)

    return bench.with_json(WEIGHTS, change)


@recipe
def model_with_code_in_example_inputs(bench: Bench) -> list[object]:
    buffer = io.BytesIO()
    torch.save(((Bomb(bench.mark),), {}), buffer)
    return bench.tampered(lambda records: records.update({"data/sample_inputs/model.pt": buffer.getvalue()}))


@bomb
def model_with_packed_example_inputs(bench: Bench) -> list[object]:
    buffer = io.BytesIO()
    torch.save(((torch.zeros(32 * MIB, dtype=torch.float64),), {}), buffer)
    with zipfile.ZipFile(buffer) as archive:
        packed = zipped({name: archive.read(name) for name in archive.namelist()}, zipfile.ZIP_DEFLATED)
    return bench.tampered(lambda records: records.update({"data/sample_inputs/model.pt": packed}))


@bomb
def model_that_announces_more_than_it_holds(bench: Bench) -> list[object]:
    size = [{"as_int": 1 << 14}, {"as_int": 1 << 14}]
    return bench.with_meta(sizes=size, strides=[{"as_int": 1 << 14}, {"as_int": 1}])


@bomb
def model_of_zeros_from_an_empty_record(bench: Bench) -> list[object]:
    """torch makes zeros of the announced size where a record is empty."""

    def change(records: dict[str, bytes]) -> None:
        config = json.loads(records[WEIGHTS])
        meta = {"sizes": [{"as_int": 1 << 14}, {"as_int": 1 << 14}], "strides": [{"as_int": 1 << 14}, {"as_int": 1}]}
        config["config"]["0.weight"]["tensor_meta"].update(meta)
        records.update({WEIGHTS: json.dumps(config).encode(), "data/weights/weight_0": b""})

    return bench.tampered(change)


@bomb
def model_of_one_number_repeated(bench: Bench) -> list[object]:
    size = [{"as_int": 1 << 14}, {"as_int": 1 << 14}]
    return bench.with_meta(sizes=size, strides=[{"as_int": 0}, {"as_int": 0}])


@bomb
def model_that_holds_more_than_it_announces(bench: Bench) -> list[object]:
    return bench.tampered(lambda records: records.update({"data/weights/weight_0": bytes(256 * MIB)}))


@recipe
def model_with_a_negative_size(bench: Bench) -> list[object]:
    return bench.with_meta(sizes=[{"as_int": -5}, {"as_int": 6}])


@recipe
def model_with_a_negative_offset(bench: Bench) -> list[object]:
    return bench.with_meta(storage_offset={"as_int": -1000})


@recipe
def model_with_a_size_that_is_text(bench: Bench) -> list[object]:
    return bench.with_meta(sizes=[{"as_int": "5"}, {"as_int": 6}])


@recipe
def model_with_a_size_of_many_digits(bench: Bench) -> list[object]:
    return bench.with_meta(sizes=[{"as_int": 10**400}, {"as_int": 6}])


@recipe
def model_with_fewer_strides(bench: Bench) -> list[object]:
    return bench.with_meta(strides=[{"as_int": 1}])


@recipe
def model_of_an_unknown_type(bench: Bench) -> list[object]:
    return bench.with_meta(dtype=99)


@recipe
def model_without_a_record(bench: Bench) -> list[object]:
    return bench.tampered(lambda records: records.__delitem__("data/weights/weight_2"))


@recipe
def model_without_settings_of_weights(bench: Bench) -> list[object]:
    return bench.tampered(lambda records: records.__delitem__(WEIGHTS))


@recipe
def model_whose_settings_are_a_list(bench: Bench) -> list[object]:
    return bench.with_json(WEIGHTS, lambda config: [config])


@recipe
def model_without_a_description(bench: Bench) -> list[object]:
    return bench.with_json(WEIGHTS, lambda config: config["config"]["0.weight"].update(tensor_meta=None))


@recipe
def model_whose_graph_is_nested_deeply(bench: Bench) -> list[object]:
    return bench.tampered(lambda records: records.update({"models/model.json": b"[" * 100_000}))


@recipe
def model_whose_graph_is_a_number(bench: Bench) -> list[object]:
    return bench.tampered(lambda records: records.update({"models/model.json": b"NaN"}))


@recipe
def model_whose_graph_is_noise(bench: Bench) -> list[object]:
    return bench.tampered(lambda records: records.update({"models/model.json": os.urandom(500)}))


@bomb
def model_whose_graph_is_lists_without_end(bench: Bench) -> list[object]:
    graph = b"[" + b"[]," * (8 * MIB) + b"[]]"
    return bench.tampered(lambda records: records.update({"models/model.json": graph}))


def in_a_size(bench: Bench, text: str) -> list[object]:
    def change(records: dict[str, bytes]) -> None:
        graph = records["models/model.json"].decode()
        records["models/model.json"] = re.sub(r'"expr_str": ?"[^"]*"', f'"expr_str": "{text}"', graph).encode()

    return bench.tampered(change)


@recipe
def model_with_code_in_a_size(bench: Bench) -> list[object]:
    return in_a_size(bench, f"__import__('os').system('touch {bench.mark}')")


@recipe
def model_with_a_factorial(bench: Bench) -> list[object]:
    """sympy would compute it."""
    return in_a_size(bench, "99999999999!")


@recipe
def model_with_a_shift(bench: Bench) -> list[object]:
    return in_a_size(bench, "1 << 99999999999")


@recipe
def model_with_a_power(bench: Bench) -> list[object]:
    return in_a_size(bench, "9**9**9**9")


@recipe
def model_with_an_operation_of_the_system(bench: Bench) -> list[object]:
    def change(model: Any) -> None:
        model["graph_module"]["graph"]["nodes"][0].update(target="torch.os.system", inputs=[])

    return bench.with_json("models/model.json", change)


@recipe
def model_that_reads_files(bench: Bench) -> list[object]:
    def change(model: Any) -> None:
        model["graph_module"]["graph"]["nodes"][0].update(target="torch.ops.aten.from_file.default", inputs=[])

    return bench.with_json("models/model.json", change)


@recipe
def model_without_nodes(bench: Bench) -> list[object]:
    return bench.with_json("models/model.json", lambda model: model["graph_module"]["graph"].update(nodes=[]))


@recipe
def model_without_a_signature(bench: Bench) -> list[object]:
    return bench.with_json("models/model.json", lambda model: model["graph_module"].pop("signature") and None)


# Data sets


def idx_files(bench: Bench, name: str, content: bytes) -> list[object]:
    """Four files of a data set, one of which is hostile."""
    for file in FILES:
        bench.write(f"idx/{file}", content if file == name else gzip.compress(struct.pack(">2i", LABELS, 60_000)))
    folder = bench.folder / "idx"
    return ["measure", FACTORY, "--data", "mnist", "--data-dir", folder]


IMAGE_FILE = file_name("train", IMAGES)


@bomb
def idx_that_unpacks_to_more_than_its_header_says(bench: Bench) -> list[object]:
    bench.write("unused", b"")
    head = struct.pack(">4i", IMAGES, 60_000, 28, 28)
    arguments = idx_files(bench, IMAGE_FILE, gzip.compress(head + bytes(512 * MIB), 1))
    bench.write(f"idx/{file_name('train', LABELS)}", gzip.compress(struct.pack(">2i", LABELS, 60_000) + bytes(60_000)))
    return arguments


@bomb
def idx_that_announces_billions(bench: Bench) -> list[object]:
    head = struct.pack(">4i", IMAGES, 2**31 - 1, 28, 28)
    return idx_files(bench, IMAGE_FILE, gzip.compress(head + bytes(256 * MIB), 1))


@recipe
def idx_that_announces_less_than_nothing(bench: Bench) -> list[object]:
    return idx_files(bench, IMAGE_FILE, gzip.compress(struct.pack(">4i", IMAGES, -5, 28, 28)))


@recipe
def idx_cut(bench: Bench) -> list[object]:
    return idx_files(bench, IMAGE_FILE, gzip.compress(struct.pack(">4i", IMAGES, 60_000, 28, 28) + bytes(784))[:-9])


@recipe
def idx_that_is_a_page(bench: Bench) -> list[object]:
    return idx_files(bench, IMAGE_FILE, b"<html>")


@recipe
def idx_that_is_a_folder(bench: Bench) -> list[object]:
    arguments = idx_files(bench, IMAGE_FILE, b"")
    (bench.folder / "idx" / IMAGE_FILE).unlink()
    (bench.folder / "idx" / IMAGE_FILE).mkdir()
    return arguments


# Folders of runs


def label_rows() -> list[dict[str, Any]]:
    return [
        {
            "preset": "digits",
            "protocol": "epochs",
            "model": "MLP",
            "ratio": ratio / 10,
            "seed": 0,
            "reached": True,
            "train accuracy": 1.0,
            "test accuracy": 1 - ratio / 20,
            "gap": ratio / 20,
            "training loss": 0.01 + ratio / 1000,
            "trace": 3.0 + ratio,
            "errors": "",
            "training seconds": 1.5,
        }
        for ratio in range(5)
    ]


def run_folder(bench: Bench) -> Path:
    """A folder as `minsharp reproduce labels` leaves it."""
    folder = bench.folder / "run"
    (folder / "cells").mkdir(parents=True)
    write_csv(folder / "results.csv", label_rows())
    bench.write("run/settings.json", json.dumps({"experiment": "labels", "preset": "digits"}))
    return folder


def figures(bench: Bench, name: str, content: bytes | str) -> list[object]:
    folder = run_folder(bench)
    bench.write(f"run/{name}", content)
    return ["figures", folder]


def changed_rows(bench: Bench, **cells: Any) -> list[object]:
    folder = run_folder(bench)
    write_csv(folder / "results.csv", [{**row, **cells} for row in label_rows()])
    return ["figures", folder]


def resumed(bench: Bench, content: bytes | str) -> list[object]:
    folder = run_folder(bench)
    bench.write("run/settings.json", content)
    return ["reproduce", "labels", "--out", folder, "--epochs", 1, "--train", 20, "--workers", 1]


@recipe
def results_cut(bench: Bench) -> list[object]:
    content = (run_folder(bench) / "results.csv").read_bytes()
    bench.write("run/results.csv", content[:-25])
    return ["figures", bench.folder / "run"]


@recipe
def results_empty(bench: Bench) -> list[object]:
    return figures(bench, "results.csv", b"")


@recipe
def results_of_noise(bench: Bench) -> list[object]:
    return figures(bench, "results.csv", np.random.default_rng(2).bytes(4000))


@recipe
def results_with_a_head_alone(bench: Bench) -> list[object]:
    return figures(bench, "results.csv", ",".join(label_rows()[0]) + "\n")


@recipe
def results_with_words_for_numbers(bench: Bench) -> list[object]:
    return changed_rows(bench, gap="much")


@recipe
def results_with_nothing_for_a_ratio(bench: Bench) -> list[object]:
    return changed_rows(bench, ratio=float("nan"))


@recipe
def results_with_a_number_of_many_digits(bench: Bench) -> list[object]:
    return changed_rows(bench, gap=10**400)


@recipe
def results_without_a_column(bench: Bench) -> list[object]:
    return figures(bench, "results.csv", "ratio,gap\n0,1\n")


@recipe
def results_with_one_column_twice(bench: Bench) -> list[object]:
    return figures(bench, "results.csv", "ratio,gap,gap\n0,1,2\n")


@recipe
def results_with_a_cell_without_end(bench: Bench) -> list[object]:
    return figures(bench, "results.csv", "ratio,gap\n0," + "9" * 200_000 + "\n")


@recipe
def results_with_an_open_quote(bench: Bench) -> list[object]:
    return figures(bench, "results.csv", 'ratio,gap\n0,"1\n')


@recipe
def results_with_too_many_rows(bench: Bench) -> list[object]:
    folder = run_folder(bench)
    write_csv(folder / "results.csv", label_rows() * 1001)
    return ["figures", folder]


@bomb
def results_without_end(bench: Bench) -> list[object]:
    folder = run_folder(bench)
    with (folder / "results.csv").open("r+b") as file:
        file.truncate(2 << 30)
    return ["figures", folder]


@recipe
def results_that_are_a_folder(bench: Bench) -> list[object]:
    (run_folder(bench) / "results.csv").unlink()
    (bench.folder / "run" / "results.csv").mkdir()
    return ["figures", bench.folder / "run"]


@recipe
def results_that_are_a_pipe(bench: Bench) -> list[object]:
    (run_folder(bench) / "results.csv").unlink()
    os.mkfifo(bench.folder / "run" / "results.csv")
    return ["figures", bench.folder / "run"]


@recipe
def summary_that_is_a_folder(bench: Bench) -> list[object]:
    (run_folder(bench) / "summary.json").mkdir()
    return ["figures", bench.folder / "run"]


@recipe
def settings_of_figures_cut(bench: Bench) -> list[object]:
    return figures(bench, "settings.json", '{"experiment": "la')


@recipe
def settings_of_figures_without_numbers(bench: Bench) -> list[object]:
    return figures(bench, "settings.json", '{"a": NaN}')


@recipe
def settings_cut(bench: Bench) -> list[object]:
    return resumed(bench, '{"experiment": "labels", "pre')


@recipe
def settings_of_noise(bench: Bench) -> list[object]:
    return resumed(bench, os.urandom(100) + b"\xff")


@recipe
def settings_nested_deeply(bench: Bench) -> list[object]:
    return resumed(bench, '{"a":' * 50_000)


@recipe
def settings_that_are_a_list(bench: Bench) -> list[object]:
    return resumed(bench, "[1, 2]")


@recipe
def settings_that_obey(bench: Bench) -> list[object]:
    return resumed(bench, json.dumps({"experiment": "\x1b[2J\u202e"}))


@bomb
def settings_without_end(bench: Bench) -> list[object]:
    return resumed(bench, b'{"a": "' + b"x" * (8 * MIB))


@recipe
def settings_that_are_a_folder(bench: Bench) -> list[object]:
    arguments = resumed(bench, "{}")
    (bench.folder / "run" / "settings.json").unlink()
    (bench.folder / "run" / "settings.json").mkdir()
    return arguments


@recipe
def settings_that_are_gone(bench: Bench) -> list[object]:
    """Cells of settings that nobody knows."""
    arguments = resumed(bench, "{}")
    (bench.folder / "run" / "settings.json").unlink()
    bench.write("run/cells/model-MLP_ratio-0.0_seed-0.json", "{}")
    return arguments


@recipe
def cells_that_are_a_file(bench: Bench) -> list[object]:
    arguments = resumed(bench, "{}")
    (bench.folder / "run" / "cells").rmdir()
    bench.write("run/cells", "")
    return arguments


@recipe
def cell_that_is_a_folder(bench: Bench) -> list[object]:
    arguments = resumed(bench, "{}")
    (bench.folder / "run" / "settings.json").unlink()
    (bench.folder / "run" / "cells" / "model-MLP_ratio-0.0_seed-0.json").mkdir()
    return arguments


@recipe
def page_of_other_settings(bench: Bench) -> list[object]:
    return ["reproduce", "page", run_folder(bench), "--write", bench.folder / "page.md"]


@recipe
def page_of_settings_of_the_wrong_kind(bench: Bench) -> list[object]:
    folder = run_folder(bench)
    settings = {"preset": ["digits"], "protocol": 3, "measures": 5, "recipes": None, "train": {}, "device": []}
    bench.write("run/settings.json", json.dumps(settings))
    return ["reproduce", "page", folder, "--write", bench.folder / "page.md"]


@recipe
def lock_that_is_a_folder(bench: Bench) -> list[object]:
    arguments = resumed(bench, "{}")
    (bench.folder / "run" / ".lock").mkdir()
    return arguments


@recipe
def lock_that_is_a_link(bench: Bench) -> list[object]:
    arguments = resumed(bench, "{}")
    (bench.folder / "run" / ".lock").symlink_to(bench.write("precious", "old"))
    return arguments


@recipe
def out_that_is_a_folder(bench: Bench) -> list[object]:
    (bench.folder / "flat.safetensors").mkdir()
    return ["flatten", FACTORY, "--data", bench.data, "--out", bench.folder / "flat.safetensors"]


@recipe
def out_in_a_file(bench: Bench) -> list[object]:
    return ["flatten", FACTORY, "--data", bench.data, "--out", bench.data / "flat.safetensors"]


@recipe
def out_that_is_a_device(bench: Bench) -> list[object]:
    (bench.folder / "r.html").symlink_to("/dev/full")
    return ["measure", FACTORY, "--data", bench.data, "--report", bench.folder / "r.html"]


# Code of others, which does run, and may do anything but show a traceback


def code(bench: Bench, text: str) -> list[object]:
    name = f"hostile_{zlib.crc32(text.encode()):x}"
    bench.write(f"{name}.py", "import torch, sys\n" + text)
    return ["measure", f"{name}:make", "--data", bench.data]


@recipe
def code_that_exits_when_imported(bench: Bench) -> list[object]:
    return code(bench, "sys.exit(0)")


@recipe
def code_that_does_not_compile(bench: Bench) -> list[object]:
    return code(bench, "def make(:")


@recipe
def code_that_raises_when_imported(bench: Bench) -> list[object]:
    return code(bench, "raise ValueError('\\x1b[31mno')")


@recipe
def code_that_exits(bench: Bench) -> list[object]:
    return code(bench, "def make(): sys.exit('bye')")


@recipe
def code_that_raises_the_worst(bench: Bench) -> list[object]:
    return code(bench, "class Worst(BaseException): pass\ndef make(): raise Worst('end')")


@recipe
def code_that_raises_what_cannot_be_told(bench: Bench) -> list[object]:
    return code(bench, "class Mute(Exception):\n    def __str__(self): raise self\ndef make(): raise Mute()")


@recipe
def code_that_stops_iteration(bench: Bench) -> list[object]:
    return code(bench, "def make(): raise StopIteration")


@recipe
def code_that_ends_the_input(bench: Bench) -> list[object]:
    return code(bench, "def make(): raise EOFError")


@recipe
def code_that_recurses(bench: Bench) -> list[object]:
    return code(bench, "def make(): return make()")


@recipe
def code_with_a_trap_for_names(bench: Bench) -> list[object]:
    return code(bench, "def __getattr__(name): raise SystemExit(name)")


FORWARD = """
class Net(torch.nn.Module):
    def __init__(s):
        super().__init__()
        s.l = torch.nn.Linear(6, 3).double()
"""


@recipe
def code_whose_forward_raises(bench: Bench) -> list[object]:
    return code(bench, FORWARD + "    def forward(s, x): raise KeyError('x')\nmake = Net")


@recipe
def code_whose_forward_exits(bench: Bench) -> list[object]:
    return code(bench, FORWARD + "    def forward(s, x): sys.exit(0)\nmake = Net")


@recipe
def code_whose_forward_raises_the_worst(bench: Bench) -> list[object]:
    return code(bench, FORWARD + "    def forward(s, x): raise GeneratorExit\nmake = Net")


@recipe
def code_whose_module_lies(bench: Bench) -> list[object]:
    return code(bench, FORWARD + "    def named_parameters(s, *a, **k): raise RuntimeError('no')\nmake = Net")


@recipe
def code_that_is_no_model(bench: Bench) -> list[object]:
    return code(bench, "make = dict")


@recipe
def code_that_speaks(bench: Bench) -> list[object]:
    """What it prints goes where errors go."""
    return code(bench, "def make():\n    sys.stderr = sys.stdout\n    raise ValueError('loud')")


def peak_of(arguments: list[object], folder: Path) -> tuple[int, int, str]:
    """Exit code, peak of the resident memory in bytes, and stderr of a command in a process of its own."""
    script = """
import re, sys
from minsharp.cli.main import run
code = run(sys.argv[1:])
print(int(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1]) * 1024, file=sys.__stdout__)
sys.exit(code)
"""  # not ru_maxrss: a process inherits that of whoever started it
    root = Path(__file__).resolve().parents[2]
    paths = os.pathsep.join([str(root), str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
    )
    return done.returncode, int(done.stdout.splitlines()[-1]), done.stderr
