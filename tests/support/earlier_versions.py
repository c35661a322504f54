"""What an earlier version left on disk, kept under `tests/fixtures`, and what it sent."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

VERSION_0_1_0 = Path(__file__).resolve().parents[1] / "fixtures" / "v0.1.0"

SENT_BY_0_1_0: list[tuple[dict[str, Any], str]] = [
    (
        {},
        """
        0a0666656464627012df020a120a066272616e636812081a066c696e6561720a100a03657461120911000000000000f03f0a1c0a0e686172
        645f6e6567617469766573120a1a0872657765696768740a110a05686561647312081a067368617265640a230a09696e666572656e636512
        161a1470726f746f747970655f6e6f726d616c697a65640a120a056b5f746f701209110000000000003e400a110a086c5f645f666f726d12
        051a036c6f670a170a0d6c5f735f726564756374696f6e12061a046d65616e0a150a086c616d6264615f31120911000000000000f03f0a15
        0a086c616d6264615f3212091100000000000024400a150a086c616d6264615f33120911000000000000f03f0a100a03746175120911ec51
        b81e85ebb13f0a160a10776974686f75745f6465636973696f6e120220000a1d0a17776974686f75745f706572736f6e616c69736174696f
        6e120220000a130a0d776974686f75745f7368617265120220001814206432150a06646967697473119a9999999999b93f180a28103a1808
        0a1020197b14ae47e17a843f32066d696e692d3838800442040801100149000000000000f03f
        """,
    ),
    (
        {
            "method_settings": {"lambda_2": 0.5, "k_top": 7, "branch": "mlp", "without_share": True},
            "clients": 3,
            "rounds": 7,
            "participation": 0.25,
            "seed": 2**32 - 1,
            "data": {
                "dataset": "custom",
                "alpha": 1e-3,
                "class_names": ("cat", "döner", "eel, smoked"),
                "image_size": 48,
            },
            "training": {
                "local_epochs": 2,
                "batch_size": 17,
                "learning_rate": 0.3,
                "momentum": 0.9,
                "weight_decay": 5e-4,
                "model_group": "htfe-8",
                "feature_dim": 64,
                "htfllib_loader": True,
            },
            "wire": {"wire_dtype": "bfloat16", "fisher": "top_channels"},
        },
        """
        0a0666656464627012dc020a0f0a066272616e636812051a036d6c700a100a03657461120911000000000000f03f0a1c0a0e686172645f6e
        6567617469766573120a1a0872657765696768740a110a05686561647312081a067368617265640a230a09696e666572656e636512161a14
        70726f746f747970655f6e6f726d616c697a65640a120a056b5f746f701209110000000000001c400a110a086c5f645f666f726d12051a03
        6c6f670a170a0d6c5f735f726564756374696f6e12061a046d65616e0a150a086c616d6264615f31120911000000000000f03f0a150a086c
        616d6264615f32120911000000000000e03f0a150a086c616d6264615f33120911000000000000f03f0a100a03746175120911ec51b81e85
        ebb13f0a160a10776974686f75745f6465636973696f6e120220000a1d0a17776974686f75745f706572736f6e616c69736174696f6e1202
        20000a130a0d776974686f75745f7368617265120220011803200728ffffffff0f322f0a06637573746f6d11fca9f1d24d62503f18032203
        636174220664c3b66e6572220b65656c2c20736d6f6b656428303a2b0802101119333333333333d33f21cdccccccccccec3f29fca9f1d24d
        62403f3206687466652d383840400142040803100249000000000000d03f
        """,
    ),
    (
        {"method": "local", "data": {"dataset": "custom", "classes": 2}, "wire": {"wire_dtype": "float16"}},
        """
        0a056c6f63616c12001814206432130a06637573746f6d119a9999999999b93f18023a18080a1020197b14ae47e17a843f32066d696e692d
        3838800442040802100149000000000000f03f
        """,
    ),
    (
        {"method": "fedtgp", "data": {"dataset": "cifar100"}},
        """
        0a0666656474677012be010a110a07636f6c6c65637412061a04706f73740a110a0864697374616e636512051a036d73650a180a09696e66
        6572656e6365120b1a0970726f746f747970650a190a0c6c616d6264615f70726f746f12091100000000000024400a170a11736572766572
        5f62617463685f73697a65120208000a1a0a0d7365727665725f65706f63687312091100000000000059400a1a0a147365727665725f6c65
        61726e696e675f72617465120208000a100a0374617512091100000000000059401814206432170a086369666172313030119a9999999999
        b93f186428203a18080a1020197b14ae47e17a843f32066d696e692d3838800442040801100149000000000000f03f
        """,
    ),
    (
        {
            "method": "local",
            "clients": 100_000,
            "rounds": 2**32 - 1,
            "training": {
                "local_epochs": 2**32 - 1,
                "batch_size": 2**32 - 1,
                "learning_rate": 1e300,
                "feature_dim": 65_535,
            },
        },
        """
        0a056c6f63616c120018a08d0620ffffffff0f32150a06646967697473119a9999999999b93f180a28103a2108ffffffff0f10ffffffff0f
        199c7500883ce4377e32066d696e692d3838ffff0342040801100149000000000000f03f
        """,
    ),
]
"""Configurations, and the messages version 0.1.0 sent for them; map entries are sorted by key."""


def restore(kept: Path, directory: Path) -> None:
    """Copies what was kept to a place where it can be worked on, and unpacks the databases in it."""
    shutil.copytree(kept, directory, dirs_exist_ok=True)
    for packed in directory.rglob("*.gz"):
        packed.with_suffix("").write_bytes(gzip.decompress(packed.read_bytes()))
        packed.unlink()


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def lines_by_round(path: Path) -> dict[tuple[int, int], str]:
    """The lines of a metrics file as they stand, by round and client, whatever their order."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return {(told["round"], told["client"]): line for line in lines for told in [json.loads(line)]}


def accepted_uploads(state_dir: Path) -> list[tuple[int, int]]:
    """By round and client, in order, as the server's audit log tells."""
    events = [json.loads(line) for line in (state_dir / "audit.jsonl").read_text(encoding="utf-8").splitlines()]
    return sorted((event["round"], event["client"]) for event in events if event["what"] == "accepted")
