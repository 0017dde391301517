"""The official GLUE, SQuAD, RACE and CIFAR-10, fetched and checked.

TABLE has the SHA-256 of each file. A set gets its name only when it is complete. The same command
fetches only missing files.

    DIR/archives/NAME                fetched files
    DIR/glue, squad, race, cifar10   the official layouts
"""
import hashlib
import shutil
import socket
import sys
import tempfile
from pathlib import Path

import torch

from common.cli import UserError

# digests from the public records of TensorFlow Datasets and Hugging Face Datasets
TABLE = {  # set: (address of its files, lines of: file there, its SHA-256, its place in the folder)
    "glue": ("https://dl.fbaipublicfiles.com/", """
glue/data/CoLA.zip       f212fcd832b8f7b435fb991f101abf89f96b933ab400603bf198960dfc32cbff CoLA
glue/data/SST-2.zip      d67e16fb55739c1b32cdce9877596db1c127dc322d93c082281f64057c16deaa SST-2
glue/data/STS-B.zip      e60a6393de5a8b5b9bac5020a1554b54e3691f9d600b775bd131e613ac179c85 STS-B
glue/data/QQP-clean.zip  40e7c862c04eb26ee04b67fd900e76c45c6ba8e6d8fab4f8f1f8072a1a3fbae0 QQP
glue/data/MNLI.zip       e7c1d896d26ed6caf700110645df426cc2d8ebf02a5ab743d5a5c68ac1c83633 MNLI
glue/data/QNLIv2.zip     e634e78627a29adaecd4f955359b22bf5e70f2cbd93b493f2d624138a0c0e5f5 QNLI
glue/data/RTE.zip        6bf86de103ecd335f3441bd43574d23fef87ecc695977a63b82d5efb206556ee RTE
glue/data/WNLI.zip       ae0e8e4d16f4d46d4a0a566ec7ecceccfd3fbfaa4a7a4b4e02848c0f2561ac46 WNLI
glue/data/AX.tsv         0e13510b1bb14436ff7e2ee82338f0efb0133ecf2e73507a697dc210db3f05fd \
diagnostic/diagnostic.tsv
"""),
    "squad": ("https://rajpurkar.github.io/SQuAD-explorer/dataset/", """
train-v1.1.json          3527663986b8295af4f7fcdff1ba1ff3f72d07d61a20f487cb238a6ef92fd955
dev-v1.1.json            95aa6a52d5d6a735563366753ca50492a658031da74f301ac5238b03966972c9
train-v2.0.json          68dcfbb971bd3e96d5b46c7177b16c1a4e7d4bdef19fb204502738552dede002
dev-v2.0.json            80a5225e94905956a6446d296ca1093975c4d3b3260f1d6c8f68bc2ab77182d8
"""),
    "race": ("http://www.cs.cmu.edu/~glai1/data/race/", """
RACE.tar.gz              b2769cc9fdc5c546a693300eb9a966cec6870bd349fbc44ed5225f8ad33006e5
"""),
    "cifar10": ("https://www.cs.toronto.edu/~kriz/", """
cifar-10-binary.tar.gz   c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd
"""),
}


def fetch(url, digest, folder):
    """The path of the file in `folder`, fetched if missing, and checked."""
    path = folder / url.rpartition("/")[-1]
    if not path.exists():
        try:
            torch.hub.download_url_to_file(url, str(path), digest, sys.stderr.isatty())
        except (OSError, RuntimeError) as error:  # RuntimeError: another digest
            raise UserError(f"{url}: {error}; check the network and run the same command again"
                            ) from None
    if hashlib.sha256(path.read_bytes()).hexdigest() != digest:
        raise UserError(f"{path}: its SHA-256 is not {digest}; move it away and run the same "
                        "command again")
    return path


def put(path, place):
    """Copy a file into a set, or the content of an archive's top folder. Neither kind of archive
    writes outside the folder that it is unpacked into."""
    if path.suffix not in (".zip", ".gz"):
        place.parent.mkdir(exist_ok=True)
        shutil.copy(path, place)
        return
    options = {} if path.suffix == ".zip" else {"filter": "data"}
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        shutil.unpack_archive(path, scratch, **options)
        for top in Path(scratch).iterdir():
            if top.is_dir() and top.name != "__MACOSX":
                shutil.copytree(top, place, copy_function=shutil.move, dirs_exist_ok=True)


def download(name, folder, table=TABLE):
    """Fetch the set `name` into folder/name, unless it exists. Returns that path."""
    target = Path(folder) / name
    archives = Path(folder) / "archives" / name
    if target.exists():
        return target
    archives.mkdir(parents=True, exist_ok=True)
    socket.setdefaulttimeout(60)  # seconds without a byte
    address, lines = table[name]
    with tempfile.TemporaryDirectory(dir=archives) as scratch:
        made = Path(scratch, name)
        made.mkdir()
        for line in lines.strip().splitlines():
            file, digest, place = [*line.split(), ""][:3]
            put(fetch(address + file, digest, archives), made / place)
        made.rename(target)
    return target
