"""Makes small sets of one's own of real ones, in each layout that `gradwire train --data` reads.

    python benches/own_data.py CIFAR OUT --images 20000 --text input.txt

CIFAR holds `cifar-10-batches-bin/`; the text is a play (tiny Shakespeare). Writes below OUT: `pictures/`, class folders
of PNG files; `grey/`, IDX files of 28×28 grey pixels; `colours.npz`; and `speeches.csv`, who of the six who speak most
says what. Needs NumPy and Pillow.
"""

import argparse
import csv
import re
import struct
from collections import Counter
from pathlib import Path

import numpy as np
from PIL import Image

NAMES = "airplane automobile bird cat deer dog frog horse ship truck".split()


def records(folder, files):
    rows = np.concatenate([np.fromfile(folder / file, np.uint8).reshape(-1, 3073) for file in files])
    return rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), rows[:, 0]


def write_pictures(images, labels, out):
    for name in NAMES:
        (out / name).mkdir(parents=True, exist_ok=True)
    for number, (image, label) in enumerate(zip(images, labels)):
        Image.fromarray(image).save(out / NAMES[label] / f"{number:05}.png")


def write_idx(images, labels, out, name):
    out.mkdir(parents=True, exist_ok=True)
    grey = np.stack([np.asarray(Image.fromarray(i).convert("L").resize((28, 28))) for i in images])
    for what, array in (("images", grey), ("labels", labels)):
        head = struct.pack(">BBBB", 0, 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
        (out / f"{name}-{what}-idx{array.ndim}-ubyte").write_bytes(head + array.tobytes())


def write_speeches(text, out):
    speeches = re.findall(r"^([A-Z][A-Za-z ]+):\n((?:.+\n)+)", text.read_text() + "\n", re.M)
    most = {name for name, _ in Counter(name for name, _ in speeches).most_common(6)}
    with out.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["speaker", "text"])
        rows.writerows((name, speech.strip()) for name, speech in speeches if name in most)


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("cifar", type=Path)
parser.add_argument("out", type=Path)
parser.add_argument("--images", type=int, default=20_000)
parser.add_argument("--text", type=Path)
arguments = parser.parse_args()
folder, out = arguments.cifar / "cifar-10-batches-bin", arguments.out
train = records(folder, [f"data_batch_{number}.bin" for number in range(1, 6)])
train = [part[: arguments.images] for part in train]
test = [part[: arguments.images // 5] for part in records(folder, ["test_batch.bin"])]
write_pictures(*train, out / "pictures")
write_idx(*train, out / "grey", "train")
write_idx(*test, out / "grey", "t10k")
sets = dict(zip(["train_images", "train_labels", "test_images", "test_labels"], [*train, *test]))
np.savez_compressed(out / "colours.npz", **sets)
if arguments.text:
    write_speeches(arguments.text, out / "speeches.csv")
