"""Three clients with images of their own: two with a folder per class, one with an .npz file.

    python examples/own_data/run.py

Draws the images, starts a server and three clients as one would in four terminals, and when the run is over predicts
new images with one of the trained clients.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random

import numpy as np
from PIL import Image, ImageDraw

import feddbp

SHAPES = ("circle", "cross", "stripes")
COMMANDS = Path(sys.executable).parent  # installed commands are next to the interpreter, on the path or not

Process = subprocess.Popen[bytes]


def drawing(shape: str, side: int, random: Random) -> Image.Image:
    """A shape of random size, place and brightness, on black."""
    image = Image.new("L", (side, side))
    draw = ImageDraw.Draw(image)
    size = random.randint(side // 2, 3 * side // 4)
    x, y = random.randint(1, side - size - 1), random.randint(1, side - size - 1)
    box, shade = (x, y, x + size, y + size), random.randint(128, 255)
    if shape == "circle":
        draw.ellipse(box, fill=shade)
    elif shape == "cross":
        draw.line(box, fill=shade, width=2)
        draw.line((x, y + size, x + size, y), fill=shade, width=2)
    else:
        for height in range(y, y + size, 4):
            draw.line((x, height, x + size, height), fill=shade, width=2)
    return image


def write_folder(folder: Path, shapes: tuple[str, ...], side: int, random: Random) -> Path:
    """FOLDER/SHAPE/0.png and so on. The client reads them as RGB and keeps a quarter for testing."""
    for shape in shapes:
        (folder / shape).mkdir(parents=True)
        for number in range(40):
            drawing(shape, side, random).save(folder / shape / f"{number}.png")
    return folder


def write_npz(path: Path, side: int, random: Random) -> Path:
    """Grey pixels and numbers for labels; `classes` says which number is which class."""
    labels = np.arange(120) % len(SHAPES)
    images = np.stack([np.asarray(drawing(SHAPES[label], side, random)) for label in labels])
    np.savez(path, x_train=images, y_train=labels, classes=np.array(SHAPES))
    return path


def start(command: str, *arguments: object) -> Process:
    return subprocess.Popen([COMMANDS / command, *map(str, arguments)])


def address_of(server: Process, state_dir: Path) -> str:
    """The address a server started with port 0 listens on, which it writes to a file."""
    endpoint = state_dir / "endpoint.json"
    while not endpoint.exists():
        if server.poll() is not None:
            sys.exit("the server did not start")
        time.sleep(0.05)
    found = json.loads(endpoint.read_text())
    return f"{found['host']}:{found['port']}"


def wait_for(processes: list[Process]) -> None:
    """Until all have ended; the first one that fails ends the example, since the others would wait for it."""
    while None in (codes := [process.poll() for process in processes]):
        if any(codes):
            sys.exit("a process failed; its last line says why")
        time.sleep(0.05)


def train(out: Path, rounds: int) -> None:
    random = Random(0)
    # Clients differ in image size, in colours, and in the classes they hold: client 1 has no stripes.
    data = [
        write_folder(out / "site-0", SHAPES, 32, random),
        write_folder(out / "site-1", ("circle", "cross"), 24, random),
        write_npz(out / "site-2.npz", 28, random),
    ]
    run = ("--dataset", "custom", "--class-names", ",".join(SHAPES), "--clients", 3, "--rounds", rounds)
    training = ("--local-epochs", 3, "--batch-size", 8, "--learning-rate", 0.05)
    # With --min-clients the run starts when all three have joined, not when the first one has.
    place = ("--port", 0, "--state-dir", out / "server", "--min-clients", 3)
    processes = [start("feddbp-server", *run, *training, *place)]
    try:
        address = address_of(processes[0], out / "server")
        for client_id, path in enumerate(data):
            # three clients and a server print to the same terminal here, and share the cores
            shared = ("--log-level", "warning", "--threads", 1)
            where = ("--server", address, "--state-dir", out / "clients")
            processes.append(start("feddbp-client", "--id", client_id, "--data", path, *where, *shared))
        wait_for(processes)
    finally:
        for process in processes:
            process.terminate()  # does nothing to one that has ended
            process.wait()


def predict(out: Path) -> None:
    (checkpoint,) = out.glob("clients/*/client-2")  # the directory in between is named after the run
    client = feddbp.TrainedClient.load(checkpoint)
    print(f"client 2 ({client.facts.architecture}, images {client.facts.image_shape}) predicts")
    random = Random(1)
    for shape in SHAPES:
        # any size will do: images are made to fit those the client was trained with
        (prediction,) = client.predict([drawing(shape, 48, random)])
        print(f"  {shape}: {prediction.name} ({prediction.measure} {prediction.best.value:.3f})")


def main() -> None:
    parser = argparse.ArgumentParser(description="A federation of three clients with images of their own.")
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    out = Path(tempfile.mkdtemp())  # stays, to be looked at
    train(out, rounds)
    predict(out)


if __name__ == "__main__":
    main()
