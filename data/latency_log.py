"""The log of latency measurements: a line each in latency.jsonl of a run folder. A killed run goes on behind the last
one, and another run takes over with --init what was measured on its machine with its settings."""
import json
import math
from pathlib import Path

from tqdm import tqdm

from common.cli import Stop, UserError
from common.checkpoint import read_jsonl, write_atomic
from common.distributed import stop_requested


def read(folders, here, parse):
    """{architecture: [milliseconds]} of all lines in these folders ("" is none) that were measured in the setting
    `here`. parse(text): an architecture; UserError names a line that is no measurement."""
    found = {}
    for path in dict.fromkeys(Path(folder) / "latency.jsonl" for folder in folders if folder):
        for number, line in enumerate(read_jsonl(path), 1):
            try:
                arch, took = parse(line["arch"]), float(line["milliseconds"])
                if not 0 < took < math.inf:
                    raise ValueError(f"{took} milliseconds")
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise UserError(f"{path}, line {number}: no measurement ({error}); delete the line") from None
            if all(line.get(key) == value for key, value in here.items()):
                found.setdefault(arch, []).append(took)
    return found


def measure(folder, here, found, rounds, time_one):
    """{architecture: the lowest of its milliseconds}, after each was measured as often as rounds, {architecture:
    times}, says, one round after the other. found: what read() gave; time_one(architecture): milliseconds. Raises Stop
    after SIGTERM."""
    path = Path(folder) / "latency.jsonl"
    kept = path.read_text(encoding="utf-8") if path.exists() else ""
    write_atomic(path, kept[:kept.rfind("\n") + 1])  # a last line that a crash tore off goes
    jobs = [arch for done in range(max(rounds.values())) for arch in rounds
            if len(found.get(arch, [])) <= done < rounds[arch]]
    for arch in tqdm(jobs, desc="latency", disable=None):
        took = time_one(arch)
        if stop_requested():
            raise Stop
        found.setdefault(arch, []).append(took)
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps({"arch": str(arch), "milliseconds": took, **here}) + "\n")
    # one order, so that what is learnt does not depend on the file's
    return {arch: min(found[arch]) for arch in sorted(rounds, key=str)}
